"""Counting words: n-gram models with Kneser-Ney smoothing."""
