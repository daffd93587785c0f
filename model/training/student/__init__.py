"""The model under training: how it begins, and which of its weights change."""
