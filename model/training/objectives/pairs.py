"""How a Cross-encoder is trained: each row's gold reply against a few negatives, listwise (LCE) or pointwise (BCE)."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.inference.backend import TorchBackend
from polyrank.model.inference.forwards import FirstStage
from polyrank.model.rankers.late import LateRanker
from polyrank.model.rankers.load import load_late
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Assembler
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.pairs import Pairs
from polyrank.model.training.config import Loss, PairTrainConfig, TrainConfig
from polyrank.model.training.data.columns import Columns, columns
from polyrank.model.training.errors import TrainingDataInvalid
from polyrank.model.training.objectives.gradient_cache import Encode, Encoded
from polyrank.model.training.objectives.losses import listwise, pointwise
from polyrank.model.training.objectives.objective import Batch, Measured, Objective, gold_first, in_order
from polyrank.model.training.student.student import Student


class PairObjective(Objective):
    """Listwise or pointwise loss of a Cross-encoder over each row's own few candidates."""

    settings = PairTrainConfig

    def __init__(self, student: Student, config: TrainConfig, device: torch.device) -> None:
        super().__init__(student, config, device)
        assert isinstance(student.encoder, CrossEncoder)
        assert isinstance(config, PairTrainConfig)
        self._encoder = student.encoder
        self._config = config
        self._retriever = load_late(config.retriever) if config.retriever else None
        self.models = {"retriever": self._retriever} if self._retriever else {}
        poly, backend = student.encoder.poly, TorchBackend(device, config.chunk_tokens)
        self._first_stage = None if poly is None else FirstStage(poly, backend)

    def prepare(self, batch: Batch) -> "PairPrepared":
        """Choose each row's negatives, and tokenise the pairs; the first stage scores them."""
        score = None if self._retriever is None else partial(_retriever_scores, self._retriever)
        pairs, width = pair_rows(self._assembler, batch, self._config.negatives, score)
        positions = self._encoder.batches(pairs, self._config.chunk_tokens)
        first = torch.zeros(len(pairs.owners))
        if self._first_stage is not None:
            first = torch.from_numpy(self._first_stage.scores(pairs))
        chunks: list[Encode] = [partial(self._encode, pairs.take(each)) for each in positions]
        return PairPrepared(chunks, positions, first.to(self._device), width, self._config.loss)

    def _encode(self, pairs: Pairs) -> Encoded:
        return (self._encoder.joint_scores(self._encoder.join(pairs).to(self._device)),)


@dataclass(frozen=True)
class PairPrepared:
    """B contexts with 1 + k candidates each, row after row, the gold reply first in its row; see `Prepared`.

    Attributes:
        chunks: score some pairs each.
        positions: places in the batch of the pairs of each chunk.
        first: what the first stage gives each pair, (B * (1 + k),).
        width: 1 + k.
        kind: which loss.
    """

    chunks: list[Encode]
    positions: list[list[int]]
    first: Tensor
    width: int
    kind: Loss

    def loss(self, encoded: Sequence[Encoded]) -> Tensor:
        """Return the loss of the batch, a scalar."""
        return self._loss(self._rows(encoded))

    def measured(self, encoded: Sequence[Encoded]) -> Measured:
        """Return the figures of the batch."""
        rows = self._rows(encoded)
        first = gold_first(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device), self._all(rows))
        return Measured(self._loss(rows).item(), first, len(rows))

    def _loss(self, rows: Tensor) -> Tensor:
        loss = listwise if self.kind == "listwise" else pointwise
        return loss(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device), self._all(rows))

    def _rows(self, encoded: Sequence[Encoded]) -> Tensor:
        return (in_order([each for (each,) in encoded], self.positions) + self.first).view(-1, self.width)

    @staticmethod
    def _all(rows: Tensor) -> Tensor:
        return torch.ones_like(rows, dtype=torch.bool)


class PairRows(NamedTuple):
    """B contexts with 1 + k candidates each, row after row, the gold reply first in its row. width: 1 + k."""

    pairs: Pairs
    width: int


Scores = Callable[[Sequence[Dialogue], Sequence[str]], Tensor]
"""A retriever's scores (B, N) of N texts as replies to each of B examples."""


def pair_rows(assembler: Assembler, batch: Batch, negatives: int, score: Scores | None = None) -> PairRows:
    """Pair each context with its gold reply and up to `negatives` more: listed ones first, then others of the batch.

    The others are drawn. Where a retriever scores them, its best are taken and only one is drawn, so that easy
    negatives stay known. The retriever is not asked where listed negatives leave it no place.

    Raises TrainingDataInvalid where a batch of one has no negative: its loss would be zero whatever the model.
    """
    found = columns(batch.examples, batch.others, negatives)
    width = 1 + min(negatives, int(found.allowed.sum(dim=1).min()) - 1)
    if width == 1 and len(batch.examples) + len(batch.others) == 1:
        raise TrainingDataInvalid("an example has no negatives, and in a batch of one no others; raise --batch-size")
    most_open = width - int(found.listed.sum(dim=1).min())  # places of a row that its own negatives do not fill
    scores = score(batch.examples, found.texts) if score and most_open > 1 else None
    rows: list[Pairs] = []
    for row, example in enumerate(batch.examples):
        hardness = None if scores is None else scores[row]
        chosen = [int(found.gold[row]), *_negatives_of_row(found, row, width - 1, batch.draw, hardness)]
        rows.append(assembler.pairs(example.conversation, [found.texts[column] for column in chosen])[0])
    contexts = [context for own in rows for context in own.contexts]
    candidates = [candidate for own in rows for candidate in own.candidates]
    owners = [row for row in range(len(rows)) for _ in range(width)]
    return PairRows(Pairs(contexts, candidates, owners, rows[0].prefix), width)


def _negatives_of_row(found: Columns, row: int, count: int, draw: random.Random, hardness: Tensor | None) -> list[int]:
    gold = int(found.gold[row])
    chosen = [column for column in found.listed[row].nonzero()[:, 0].tolist() if column != gold][:count]
    others = [column for column in found.allowed[row].nonzero()[:, 0].tolist() if column not in (gold, *chosen)]
    if hardness is not None:
        others.sort(key=lambda column: -hardness[column].item())
        hardest = max(0, count - len(chosen) - 1)
        chosen += others[:hardest]
        del others[:hardest]
    return chosen + draw.sample(others, count - len(chosen))


def _retriever_scores(retriever: LateRanker, examples: Sequence[Dialogue], texts: Sequence[str]) -> Tensor:
    embeddings = retriever.encode_candidates(retriever.tokenize_candidates(texts)[0])
    contexts = [retriever.tokenize_context(example.conversation)[0] for example in examples]
    return torch.stack([torch.from_numpy(scores_of(embeddings, each)) for each in retriever.encode_contexts(contexts)])
