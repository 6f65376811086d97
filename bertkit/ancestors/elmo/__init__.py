"""ELMo: a bidirectional language model whose layers are mixed."""
