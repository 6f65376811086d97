"""Loaded models that answer: prediction, scores, explanations, probes."""
