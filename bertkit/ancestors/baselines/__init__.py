"""Cheap models of labelled rows: counts, averages, shared words."""
