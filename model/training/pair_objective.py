"""How encoders of pairs are trained: a row's gold reply against a few negatives, listwise (LCE) or pointwise (BCE)."""

import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.errors import TrainingDataInvalid
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.network import Network
from polyrank.model.inference.passes import FirstStage
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.text.assembly import Assembler
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.sequences import Pairs
from polyrank.model.training.config import PairTrainConfig, TrainConfig
from polyrank.model.training.data import Columns, WordsInLoss, columns
from polyrank.model.training.objective import (
    Batch,
    Encode,
    Encoded,
    Objective,
    Prepared,
    ScoredBatch,
    classes_of,
    in_order,
    listwise,
    pointwise,
    told,
)
from polyrank.model.training.student import Student


class PairObjective(Objective[PairEncoder, PairTrainConfig]):
    """Listwise or pointwise loss over each row's own few candidates.

    Where the first stage counts words, they count as it weighs them. The score is then `late_weight * (late + own) +
    lexical`, which begins as the first stage's and has the form of a checkpoint with evidence. So the network learns
    what is missing beside words as well.
    """

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, words: WordsInLoss | None = None
    ) -> None:
        super().__init__(student, config, device, words)
        retriever = self._config.retriever
        self._retriever = load_vector_ranker(retriever) if retriever else None
        self.models = {"retriever": self._retriever} if self._retriever else {}
        poly, backend = self._encoder.poly, TorchBackend(str(device), token_budget=config.chunk_tokens)
        self._first_stage = None if poly is None else FirstStage(Network.of(poly), Compiler(backend))

    def prepare(self, batch: Batch) -> Prepared:
        """Choose each row's negatives, and tokenise the pairs; the first stage scores them."""
        score = None if self._retriever is None else partial(_retriever_scores, self._retriever)
        pairs, width, texts = pair_rows(self._assembler, batch, self._config.negatives, score)
        positions = self._encoder.batches(pairs, self._config.chunk_tokens)
        first = None if self._first_stage is None else torch.from_numpy(self._first_stage.scores(pairs))
        return Prepared(
            [partial(self._encode, pairs.take(chunk)) for chunk in positions],
            partial(self._scored, positions, first, self._lexical(batch.examples, texts), width),
        )

    def _lexical(self, examples: Sequence[Dialogue], texts: Sequence[Sequence[str]]) -> Tensor | None:
        """Return the lexical score of each pair, (pairs,); None where words do not count."""
        if self._words is None:
            return None
        rows = zip(examples, texts, strict=True)
        values = [self._words.values(example.conversation, own) for example, own in rows]
        return torch.from_numpy(np.concatenate(values))

    def _encode(self, pairs: Pairs) -> Encoded:
        return (self._encoder.own_scores(pairs),)

    def _scored(
        self,
        positions: list[list[int]],
        first: Tensor | None,
        lexical: Tensor | None,
        width: int,
        encoded: Sequence[Encoded],
    ) -> ScoredBatch:
        scores = in_order([chunk for (chunk,) in encoded], positions)
        if first is not None:
            scores = scores + first.to(scores.device)
        if self._words is not None and lexical is not None:
            scores = self._words.late_weight * scores + lexical.to(scores.device)
        rows = scores.view(-1, width)
        gold = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        allowed = torch.ones_like(rows, dtype=torch.bool)
        loss = listwise if self._config.loss == "listwise" else pointwise
        return ScoredBatch(loss(rows, gold, allowed), rows, gold, allowed)


class JointObjective(Objective[PairEncoder, TrainConfig]):
    """Cross entropy of the class of each example's context and response."""

    def prepare(self, batch: Batch) -> Prepared:
        pairs = Pairs.join([self._assembler.pairs(each.conversation, [each.response])[0] for each in batch.examples])
        positions = self._encoder.batches(pairs, self._config.chunk_tokens)
        classes = classes_of(batch.examples, self._config)
        chunks: list[Encode] = [partial(self._encode, pairs.take(chunk)) for chunk in positions]
        return Prepared(chunks, lambda encoded: told(in_order([each for (each,) in encoded], positions), classes))

    def _encode(self, pairs: Pairs) -> Encoded:
        return (self._encoder.own_scores(pairs),)


Scores = Callable[[Sequence[Dialogue], Sequence[str]], Tensor]
"""A retriever's scores (B, N) of N texts as replies to each of B examples."""


def pair_rows(
    assembler: Assembler, batch: Batch, negatives: int, score: Scores | None = None
) -> tuple[Pairs, int, list[list[str]]]:
    """Pair each context with its gold reply and up to `negatives` more: listed ones first, then others of the batch.

    Returns the pairs, row after row, the gold reply first in its row; the width of a row; and the texts of each row.

    The others are drawn. Where a retriever scores them, its best are taken and only one is drawn, so that easy
    negatives stay known. It is not called where listed negatives leave no place for its best.

    Raises TrainingDataInvalid where a batch of one has no negative: the loss of any model would be zero.
    """
    found = columns(batch.examples, batch.others, negatives, batch.draw)
    width = 1 + min(negatives, int(found.allowed.sum(dim=1).min()) - 1)
    if width == 1 and len(batch.examples) + len(batch.others) == 1:
        raise TrainingDataInvalid("an example has no negatives, and in a batch of one no others; raise --batch-size")
    most_open = width - int(found.listed.sum(dim=1).min())  # places of a row that its own negatives do not fill
    scores = score(batch.examples, found.texts) if score and most_open > 1 else None
    rows: list[Pairs] = []
    texts: list[list[str]] = []
    for row, example in enumerate(batch.examples):
        hardness = None if scores is None else scores[row]
        chosen = [int(found.gold[row]), *_negatives_of_row(found, row, width - 1, batch.draw, hardness)]
        texts.append([found.texts[column] for column in chosen])
        rows.append(assembler.pairs(example.conversation, texts[-1])[0])
    contexts = [context for own in rows for context in own.contexts]
    candidates = [candidate for own in rows for candidate in own.candidates]
    owners = [row for row in range(len(rows)) for _ in range(width)]
    return Pairs(contexts, candidates, owners, rows[0].prefix), width, texts


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


def _retriever_scores(retriever: VectorRanker, examples: Sequence[Dialogue], texts: Sequence[str]) -> Tensor:
    made = retriever.represent_candidates(retriever.tokenize_candidates(texts)[0])
    contexts = [retriever.tokenize_context(example.conversation)[0] for example in examples]
    return torch.stack(
        [torch.from_numpy(retriever.scores(context, made, None)) for context in retriever.represent_contexts(contexts)]
    )
