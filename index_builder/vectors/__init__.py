"""Candidate vectors as bytes, on the disk and in Redis."""
