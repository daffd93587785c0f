"""Encoders, scoring and checkpoints: everything that needs no server, no Redis and no FAISS.

The names below are imported on first use, so that code which only needs the error types or the config stays free of
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.checkpoint import from_base, load
    from model.config import AssemblyConfig, ModelConfig
    from model.cross_ranker import CrossRanker
    from model.late_ranker import LateRanker
    from model.pairs import Pairs
    from model.text import Conversation, Truncation, Turn

_HOMES = {
    "AssemblyConfig": "model.config",
    "Conversation": "model.text",
    "CrossRanker": "model.cross_ranker",
    "LateRanker": "model.late_ranker",
    "ModelConfig": "model.config",
    "Pairs": "model.pairs",
    "Truncation": "model.text",
    "Turn": "model.text",
    "from_base": "model.checkpoint",
    "load": "model.checkpoint",
}

__all__ = [
    "AssemblyConfig",
    "Conversation",
    "CrossRanker",
    "LateRanker",
    "ModelConfig",
    "Pairs",
    "Truncation",
    "Turn",
    "from_base",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'model' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
