"""Pretraining runs: building them, running them, and estimating their cost."""
