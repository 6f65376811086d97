"""Fine-tuning runs: data, training, evaluation and what is reported of them."""
