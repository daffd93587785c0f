"""An answer to `/rerank` before a dialect gives it its form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Truncation


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was sent: the text that the model reads, and the fields that its result repeats."""

    text: str
    echo: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document in the answer; `index` is its place in the request."""

    index: int
    score: float
    document: Document


@dataclass(frozen=True, slots=True)
class Reranked:
    """The answer: the best documents first; `sent` counts all documents, `tokens` what the model read of them."""

    model: str
    places: list[RankedDocument]
    sent: int
    tokens: int
    cut: Truncation
    with_documents: bool
    request_id: str

    @property
    def id(self) -> str:
        """The answer's own id."""
        return f"rr-{self.request_id}"

    @property
    def warnings(self) -> list[str]:
        """What was cut, in words."""
        said = []
        if self.cut.tokens:
            said.append(f"truncated: the query lost {self.cut.tokens} tokens")
        if self.cut.candidates:
            said.append(f"truncated: {self.cut.candidates} documents lost their end")
        return said


_NO_TEXTS = ("id", "image")  # Jina's clients send pictures so, by address or in base64


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
        islice((value for name, value in sent.items() if name not in _NO_TEXTS and isinstance(value, str)), 1),
    ):
        if strings := [text for text in texts if isinstance(text, str)]:
            if (length := sum(map(len, strings))) > max_chars:
                raise InvalidInput(f"documents.{at}: has {length} characters; at most {max_chars} are allowed")
            return Document("\n".join(strings), echo)
    raise InvalidInput(f"documents.{at}: holds no text; give it as `text`")


class Line(NamedTuple):
    """What is put into the sigmoid: `slope * score + intercept`."""

    slope: float
    intercept: float


AS_IT_IS = Line(1.0, 0.0)
"""For scores of which it is not known what they say."""


def relevance(scores: NDArray[np.float32], line: Line = AS_IT_IS) -> NDArray[np.float64]:
    """Map each score to 0..1 by the sigmoid of the model's line, computed in float64; the order stays.

    With the line of a calibrated model the result is the probability that a text is right. Without, it is one for a
    Cross-encoder whose score is a logit; other scores mean something only beside those of other candidates. Where the
    line is between -20 and 20, different scores stay different, except next to 0; above 36.7 the result is 1.

    >>> relevance(np.array([0.0, 2.0, -2.0], np.float32)).round(4).tolist()
    [0.5, 0.8808, 0.1192]
    """
    wide = line.slope * scores.astype(np.float64) + line.intercept
    small = np.exp(-np.abs(wide))  # of the negative magnitude: this never overflows
    return np.where(wide >= 0, 1.0, small) / (1.0 + small)


def placed(
    documents: Sequence[Document],
    scores: NDArray[np.float32],
    limit: int | None,
    raw_scores: bool,
    line: Line = AS_IT_IS,
) -> list[RankedDocument]:
    """Order documents by score, equal ones as sent; return the first `limit`."""
    shown = (scores if raw_scores else relevance(scores, line)).tolist()
    order = np.argsort(-scores, kind="stable")[:limit].tolist()
    return [RankedDocument(at, shown[at], documents[at]) for at in order]


def search_units(documents: int) -> int:
    """Return what Cohere would bill: one unit for every hundred documents begun."""
    return math.ceil(documents / 100)
