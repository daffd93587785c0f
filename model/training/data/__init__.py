"""Training examples: read, shuffled and put into batches."""
