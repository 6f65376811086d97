"""Whole jobs: pretraining, fine-tuning, compressing, comparing."""
