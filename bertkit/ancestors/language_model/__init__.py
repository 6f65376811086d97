"""Language models that read from left to right, up to GPT."""
