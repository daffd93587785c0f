"""What every dialect of reranking renders."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Truncation


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was sent: the text that is read, and what comes back with its result."""

    text: str
    echo: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A document in the answer; `index` is its place in the request."""

    index: int
    score: float
    document: Document


@dataclass(frozen=True, slots=True)
class Reranked:
    """The answer.

    Attributes:
        model: by the name that clients know it by.
        places: best first.
        sent: how many documents were ranked.
        tokens: that the model read.
        cut: what it did not read.
        with_documents: whether results hold their documents.
        request_id: of the request.
    """

    model: str
    places: list[Place]
    sent: int
    tokens: int
    cut: Truncation
    with_documents: bool
    request_id: str

    @property
    def id(self) -> str:
        """The answer's own name."""
        return f"rr-{self.request_id}"

    @property
    def warnings(self) -> list[str]:
        """What was cut, in words."""
        told = []
        if self.cut.tokens:
            told.append(f"truncated: the query lost {self.cut.tokens} tokens")
        if self.cut.candidates:
            told.append(f"truncated: {self.cut.candidates} documents lost their end")
        return told


def document_of(sent: str | dict[str, JsonValue], at: int, rank_fields: Sequence[str], max_chars: int) -> Document:
    """Read a document: a text, or an object's rank fields (a line each), its `text`, or its first string.

    Raises:
        InvalidInput: the object holds no text, or fields that are together longer than `max_chars`.
    """
    if isinstance(sent, str):
        return Document(sent)
    echo = {name: sent[name] for name in ("id", "metadata") if sent.get(name) is not None}
    for texts in (
        [sent.get(name) for name in rank_fields],
        [sent.get("text")],
        [value for name, value in sent.items() if name != "id" and isinstance(value, str)][:1],
    ):
        if strings := [each for each in texts if isinstance(each, str)]:
            if (length := sum(map(len, strings))) > max_chars:
                raise InvalidInput(f"documents.{at}: has {length} characters; at most {max_chars} are allowed")
            return Document("\n".join(strings), echo)
    raise InvalidInput(f"documents.{at}: holds no text; give it as `text`")


def relevance(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Map scores to 0..1, each for itself: their sigmoid, computed in float64.

    A Cross-encoder's score is a logit. A Bi- or Poly-encoder's is one beside the scores of other candidates, so that
    its sigmoid keeps the order, but is no probability. Different scores between -20 and 20 stay different, but for
    those next to 0; above 36.7 the result is 1.

    >>> relevance(np.array([0.0, 2.0, -2.0], np.float32)).round(4).tolist()
    [0.5, 0.8808, 0.1192]
    """
    wide = scores.astype(np.float64)
    small = np.exp(-np.abs(wide))  # of the magnitude: never overflows
    return np.where(wide >= 0, 1.0, small) / (1.0 + small)


def placed(
    documents: Sequence[Document], scores: NDArray[np.float32], limit: int | None, raw_scores: bool
) -> list[Place]:
    """Order documents by score, equal ones as sent; at most `limit` of them."""
    shown = (scores if raw_scores else relevance(scores)).tolist()
    order = np.argsort(-scores, kind="stable")[:limit].tolist()
    return [Place(at, shown[at], documents[at]) for at in order]


def search_units(documents: int) -> int:
    """What Cohere would bill: one for each hundred documents begun."""
    return math.ceil(documents / 100)


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())
