"""Checkpoints and base models on disk: found, checked, read into an encoder, written."""
