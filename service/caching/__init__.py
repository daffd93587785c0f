"""Vectors and answers that are known already."""
