"""What a build can be asked for, by name, in a module that imports without numpy and FAISS."""

KINDS = ("auto", "exact", "flat", "hnsw", "ivf", "ivfpq")  # of indexes
DTYPE_NAMES = ("float16", "float32")  # of stored vectors; a stored copy holds the place in this order
MIN_RECALL = 0.95
