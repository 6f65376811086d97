"""Loaded models at work: prediction, scores, explanations, probes."""
