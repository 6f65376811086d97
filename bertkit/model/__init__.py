"""The encoder family and its heads."""
