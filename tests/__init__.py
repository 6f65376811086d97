"""The tests, as a package: shared helpers are imported from `tests.support`."""
