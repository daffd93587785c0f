"""Loaded models that rank, and how to load them."""
