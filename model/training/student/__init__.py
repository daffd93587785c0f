"""The model that is trained: how it starts and which of its weights change."""
