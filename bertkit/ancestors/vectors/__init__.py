"""Word vectors: word2vec and GloVe."""
