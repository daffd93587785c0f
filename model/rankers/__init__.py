"""Loaded models that rank, and how they are loaded."""
