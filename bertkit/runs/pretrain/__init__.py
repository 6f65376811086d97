"""Pretraining runs: what is built, how it is driven, what it will cost."""
