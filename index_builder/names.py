"""What a build can be asked for, by name, in a module that imports without numpy and FAISS."""

import codecs

KINDS = ("auto", "exact", "flat", "hnsw", "ivf", "ivfpq")  # of indexes
DTYPE_NAMES = ("float16", "float32")  # of stored vectors; a stored copy holds the place in this order
MIN_RECALL = 0.95
MOST_PARTS = 256  # of a pool


def is_encoding(name: str) -> bool:
    """Whether Python can read texts in an encoding of this name."""
    try:
        "".encode(name)  # refuses a codec that is not of texts
        codecs.getincrementaldecoder(name)("replace").decode(b"a")
    except (LookupError, ValueError):
        return False
    return True
