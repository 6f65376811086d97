"""Smaller and faster models, and what each step costs: size, speed, parity, score."""
