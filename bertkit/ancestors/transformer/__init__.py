"""The encoder-decoder Transformer of 2017."""
