"""Retrieve and rank replies. These names are the Python interface; the rest is for the command and the server.

    import polyrank
    ranker = polyrank.load("checkpoints/chat-poly")
    ranker.rank(["hi, my parcel is late"], ["What is your order number?", "We sell lamps."], top_k=1)

    with polyrank.Client("http://127.0.0.1:8000") as client:
        client.rank("hi, my parcel is late").results[0].text

A name is imported when it is first used, so `import polyrank` does not wait for torch. The clients and their errors
need no more than `pip install 'polyrank[client]'` brings; the other names need the extra `server`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrank.model.config import AssemblyConfig, ModelConfig
    from polyrank.model.errors import CheckpointInvalid, InvalidInput, ModelNotFound, RankingError
    from polyrank.model.rankers.classifier import Classifier
    from polyrank.model.rankers.lexical import LexicalRanker
    from polyrank.model.rankers.load import load, load_classifier
    from polyrank.model.rankers.networks import CrossRanker, VectorRanker, from_base
    from polyrank.model.text.assembly import Turn
    from polyrank.service.client.attempts import (
        Busy,
        CallFailed,
        Conflicting,
        JobEnded,
        KeyRefused,
        NoAnswer,
        NotAnAnswer,
        NotThere,
        Refused,
        RequestWrong,
        ServerFailed,
        TimeOver,
    )
    from polyrank.service.client.clients import AsyncClient, Client

__version__ = "0.1.0"

_HOMES = {
    "AssemblyConfig": "polyrank.model.config",
    "AsyncClient": "polyrank.service.client.clients",
    "Busy": "polyrank.service.client.attempts",
    "CallFailed": "polyrank.service.client.attempts",
    "CheckpointInvalid": "polyrank.model.errors",
    "Classifier": "polyrank.model.rankers.classifier",
    "Client": "polyrank.service.client.clients",
    "Conflicting": "polyrank.service.client.attempts",
    "CrossRanker": "polyrank.model.rankers.networks",
    "InvalidInput": "polyrank.model.errors",
    "JobEnded": "polyrank.service.client.attempts",
    "KeyRefused": "polyrank.service.client.attempts",
    "VectorRanker": "polyrank.model.rankers.networks",
    "LexicalRanker": "polyrank.model.rankers.lexical",
    "ModelConfig": "polyrank.model.config",
    "ModelNotFound": "polyrank.model.errors",
    "NoAnswer": "polyrank.service.client.attempts",
    "NotAnAnswer": "polyrank.service.client.attempts",
    "NotThere": "polyrank.service.client.attempts",
    "RankingError": "polyrank.model.errors",
    "Refused": "polyrank.service.client.attempts",
    "RequestWrong": "polyrank.service.client.attempts",
    "ServerFailed": "polyrank.service.client.attempts",
    "TimeOver": "polyrank.service.client.attempts",
    "Turn": "polyrank.model.text.assembly",
    "from_base": "polyrank.model.rankers.networks",
    "load": "polyrank.model.rankers.load",
    "load_classifier": "polyrank.model.rankers.load",
}

__all__ = [
    "AssemblyConfig",
    "AsyncClient",
    "Busy",
    "CallFailed",
    "CheckpointInvalid",
    "Classifier",
    "Client",
    "Conflicting",
    "CrossRanker",
    "InvalidInput",
    "JobEnded",
    "KeyRefused",
    "LexicalRanker",
    "ModelConfig",
    "ModelNotFound",
    "NoAnswer",
    "NotAnAnswer",
    "NotThere",
    "RankingError",
    "Refused",
    "RequestWrong",
    "ServerFailed",
    "TimeOver",
    "Turn",
    "VectorRanker",
    "from_base",
    "load",
    "load_classifier",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        needs = f"polyrank.{name} needs {missing.name}, which is not installed: pip install 'polyrank[server]'"
        raise ImportError(needs, name=missing.name) from None
