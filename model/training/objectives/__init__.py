"""What a training step computes and minimises, for each kind of encoder."""
