"""Smaller and faster models, and what they cost: size, speed, parity, score."""
