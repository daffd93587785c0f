"""The best rows of a matrix of candidate embeddings, exactly. Read `topk.py` first, then `scan/`."""
