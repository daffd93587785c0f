"""What a build can be asked for, by name, in a module that imports without numpy and FAISS."""

import codecs
from dataclasses import dataclass
from pathlib import Path

from polyrank.model.options import Bounds, option

KINDS = ("auto", "exact", "flat", "hnsw", "ivf", "ivfpq")  # of indexes
DTYPE_NAMES = ("float16", "float32")  # of stored vectors; a stored copy holds the place in this order
MOST_PARTS = 256  # of a pool
_SHARE = Bounds(0.0, 1.0)
_KINDS = f"{', '.join(KINDS)}, or a FAISS factory string such as IVF4096,SQ8; auto: by measured times"


@dataclass(frozen=True, kw_only=True)
class AskedOptions:
    """What somebody can ask of a build."""

    index: str = option("auto", _KINDS)
    min_recall: float = option(0.95, "share of their 10 best candidates that probes must find", _SHARE, metavar="R")
    dtype: str = option("float16", "of the stored vectors")
    redis_url: str | None = option(None, "also copy the vectors into this Redis", name="redis", metavar="URL")
    max_rejected: float = option(0.01, "share of the rows that may be bad", _SHARE, metavar="SHARE")
    activate: bool = option(True, "switch to it; otherwise it is only published")


@dataclass(frozen=True, kw_only=True)
class BuildCommand:
    """What `polyrank build` alone can be asked: contexts to tune by, where it is made, in how many parts."""

    probes: Path | None = option(
        None,
        "dialogues, .jsonl[.gz|.zst], by which to tune the index",
        metavar="F",
    )
    cluster: str | None = option(
        None,
        "encode on this Ray cluster; auto: that of this machine",
        metavar="auto|HOST:PORT",
    )
    encoders: int | None = option(
        None, "how many encoders there, of one processor each", Bounds(1, 100_000), metavar="N"
    )
    shards: int | None = option(
        None, "into how many parts to cut the pool; default: 1", Bounds(1, MOST_PARTS), metavar="S"
    )


def is_encoding(name: str) -> bool:
    """Whether Python can read texts in an encoding of this name."""
    try:
        "".encode(name)  # refuses a codec that is not of texts
        codecs.getincrementaldecoder(name)("replace").decode(b"a")
    except (LookupError, ValueError):
        return False
    return True
