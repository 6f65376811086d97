"""Google's releases: TensorFlow checkpoints read without TensorFlow."""
