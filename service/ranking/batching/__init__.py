"""Work of several requests done in one go: forward passes (batcher.py) and searches (together.py)."""
