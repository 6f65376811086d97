"""What a training step minimizes: summed losses and their counts."""
