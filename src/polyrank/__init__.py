"""Retrieve and rank replies. These names are the Python interface; the rest is for the command and the server.

    import polyrank
    ranker = polyrank.load("checkpoints/chat-poly")
    ranker.rank(["hi, my parcel is late"], ["What is your order number?", "We sell lamps."], top_k=1)

A name is imported when it is first used, so `import polyrank` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrank.model.config import AssemblyConfig, ModelConfig
    from polyrank.model.errors import CheckpointInvalid, InvalidInput, ModelNotFound, RankingError
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.late import LateRanker
    from polyrank.model.rankers.lexical import LexicalRanker
    from polyrank.model.rankers.load import load
    from polyrank.model.rankers.networks import from_base
    from polyrank.model.text.assembly import Turn

__version__ = "0.1.0"

_HOMES = {
    "AssemblyConfig": "polyrank.model.config",
    "CheckpointInvalid": "polyrank.model.errors",
    "CrossRanker": "polyrank.model.rankers.cross",
    "InvalidInput": "polyrank.model.errors",
    "LateRanker": "polyrank.model.rankers.late",
    "LexicalRanker": "polyrank.model.rankers.lexical",
    "ModelConfig": "polyrank.model.config",
    "ModelNotFound": "polyrank.model.errors",
    "RankingError": "polyrank.model.errors",
    "Turn": "polyrank.model.text.assembly",
    "from_base": "polyrank.model.rankers.networks",
    "load": "polyrank.model.rankers.load",
}

__all__ = [
    "AssemblyConfig",
    "CheckpointInvalid",
    "CrossRanker",
    "InvalidInput",
    "LateRanker",
    "LexicalRanker",
    "ModelConfig",
    "ModelNotFound",
    "RankingError",
    "Turn",
    "from_base",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
