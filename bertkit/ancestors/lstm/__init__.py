"""LSTMs for labels and tags, from scratch or started from a language model."""
