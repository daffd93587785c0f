"""Training: from dialogues to a checkpoint. Nothing that serves imports this package."""
