"""Training examples: read, shuffled, and sorted into candidates of a batch."""
