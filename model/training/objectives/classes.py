"""How classifiers of pairs are trained: cross entropy of the class of each example's context and response."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import CandidateState, ContextState
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.pairs import Pairs
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.data.words import PairWords
from polyrank.model.training.objectives.gradient_cache import Encode, Encoded
from polyrank.model.training.objectives.late import LateObjective
from polyrank.model.training.objectives.objective import Batch, Objective, Prepared, ScoredBatch, in_order
from polyrank.model.training.student.student import Student


class ApartObjective(LateObjective):
    """For encoders that keep both sides apart."""

    def prepare(self, batch: Batch) -> Prepared:
        """Tokenise the contexts, and each distinct response once."""
        columns = {text: at for at, text in enumerate(dict.fromkeys(each.response for each in batch.examples))}
        places = [columns[each.response] for each in batch.examples]
        classes = _classes(batch.examples, self._config)
        return self._prepared(self._tokens(batch.examples, list(columns)), partial(self._told, places, classes))

    def _told(
        self, places: list[int], classes: Tensor, contexts: ContextState, candidates: CandidateState
    ) -> ScoredBatch:
        rows = [
            self._encoder.class_logits(_row(contexts, row), _at(candidates, place)) for row, place in enumerate(places)
        ]
        return _scored(torch.cat(rows), classes)


class JointObjective(Objective):
    """For Cross-encoders."""

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, words: PairWords | None = None
    ) -> None:
        super().__init__(student, config, device, words)
        assert isinstance(student.encoder, CrossEncoder)
        self._encoder, self._config = student.encoder, config
        self.models = {}

    def prepare(self, batch: Batch) -> Prepared:
        """Tokenise the pairs."""
        pairs = Pairs.join([self._assembler.pairs(each.conversation, [each.response])[0] for each in batch.examples])
        positions = self._encoder.batches(pairs, self._config.chunk_tokens)
        classes = _classes(batch.examples, self._config)
        chunks: list[Encode] = [partial(self._encode, pairs.take(chunk)) for chunk in positions]
        return Prepared(chunks, lambda encoded: _scored(in_order([each for (each,) in encoded], positions), classes))

    def _encode(self, pairs: Pairs) -> Encoded:
        return (self._encoder.joint_scores(CrossEncoder.join(pairs, self._encoder.encoder.pad_id).to(self._device)),)


def _classes(examples: Sequence[Dialogue], config: TrainConfig) -> Tensor:
    return torch.tensor([config.labels.index(each.category) for each in examples])


def _scored(logits: Tensor, classes: Tensor) -> ScoredBatch:
    """Logits (B, C) and classes (B,); a look's share of rows that came first is then the accuracy."""
    gold = classes.to(logits.device)
    return ScoredBatch(F.cross_entropy(logits.float(), gold), logits, gold, torch.ones_like(logits, dtype=torch.bool))


def _row(contexts: ContextState, row: int) -> ContextState:
    first, late, mask = contexts
    some = slice(row, row + 1)
    own = ContextCodes(first.vectors[some], first.mask[some])
    return ContextState(own) if late is None or mask is None else ContextState(own, late[some], mask[some])


def _at(candidates: CandidateState, place: int) -> CandidateState:
    first, late, mask = candidates
    some = slice(place, place + 1)
    own = first[some]
    return CandidateState(own) if late is None or mask is None else CandidateState(own, late[some], mask[some])
