"""How Bi- and Poly-encoders are trained: in-batch loss with listed negatives, and distillation from a teacher."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.rankers.load import load_cross
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import LateTrainConfig, TrainConfig
from polyrank.model.training.data.columns import Columns, columns
from polyrank.model.training.objectives.gradient_cache import Encode, Encoded
from polyrank.model.training.objectives.losses import distillation, listwise
from polyrank.model.training.objectives.objective import Batch, Measured, Objective, gold_first, in_order
from polyrank.model.training.student.student import Student


class LateObjective(Objective):
    """In-batch loss of a Bi- or Poly-encoder, with distillation where there is a teacher."""

    settings = LateTrainConfig

    def __init__(self, student: Student, config: TrainConfig, device: torch.device) -> None:
        super().__init__(student, config, device)
        assert isinstance(student.encoder, LateEncoder)
        assert isinstance(config, LateTrainConfig)
        self._encoder = student.encoder
        self._config = config
        self._teacher = load_cross(config.teacher) if config.teacher else None
        self.models = {"teacher": self._teacher} if self._teacher else {}

    def prepare(self, batch: Batch) -> "LatePrepared":
        """Tokenise contexts and candidates; the teacher scores each row's listed ones."""
        found = columns(batch.examples, batch.others, self._config.negatives)
        contexts = [self._assembler.context(example.conversation)[0] for example in batch.examples]
        candidates, _ = self._assembler.candidates(found.texts)
        context_chunks, candidate_chunks = (
            length_batches([len(each) for each in side], self._config.chunk_tokens) for side in (contexts, candidates)
        )
        return LatePrepared(
            [
                *[partial(self._encode_contexts, [contexts[each] for each in chunk]) for chunk in context_chunks],
                *[partial(self._encode_candidates, [candidates[each] for each in chunk]) for chunk in candidate_chunks],
            ],
            context_chunks,
            candidate_chunks,
            found,
            self._lessons(batch.examples, found),
        )

    def _encode_contexts(self, contexts: Sequence[list[int]]) -> Encoded:
        return self._encoder.encode_context(pad(contexts, self._encoder.context.pad_id).to(self._device))

    def _encode_candidates(self, candidates: Sequence[list[int]]) -> Encoded:
        return (self._encoder.encode_candidates(pad(candidates, self._encoder.candidate.pad_id).to(self._device)),)

    def _lessons(self, examples: Sequence[Dialogue], found: Columns) -> "Lessons | None":
        if self._teacher is None:
            return None
        scores = torch.zeros(found.listed.shape)
        for row, example in enumerate(examples):
            listed = found.listed[row].nonzero()[:, 0].tolist()
            pairs, _ = self._teacher.tokenize_pairs(example.conversation, [found.texts[each] for each in listed])
            scores[row, listed] = torch.from_numpy(self._teacher.score_pairs(pairs))
        return Lessons(scores, found.listed, self._config.teacher_weight)


class Lessons(NamedTuple):
    """A teacher's scores, (B, N); which columns it scored, (B, N); the share of the distillation in the loss."""

    scores: Tensor
    listed: Tensor
    weight: float


@dataclass(frozen=True)
class LatePrepared:
    """A batch of B contexts and N candidates; see `Prepared`.

    Attributes:
        chunks: encode contexts to (vectors, mask), then candidates to (embeddings,).
        context_chunks, candidate_chunks: positions in the batch of what each chunk encodes.
        columns: what the candidates are to each row.
        lessons: the teacher's, if there is one.
    """

    chunks: list[Encode]
    context_chunks: list[list[int]]
    candidate_chunks: list[list[int]]
    columns: Columns
    lessons: Lessons | None

    def loss(self, encoded: Sequence[Encoded]) -> Tensor:
        """Return the loss of the batch, a scalar."""
        return self._loss(poly_scores(*self._joined(encoded)))

    def measured(self, encoded: Sequence[Encoded]) -> Measured:
        """Return the figures of the batch."""
        codes, embeddings = self._joined(encoded)
        scores = poly_scores(codes, embeddings)
        first = gold_first(scores.cpu(), self.columns.gold, self.columns.allowed)
        return Measured(self._loss(scores).item(), first, len(scores), code_cosine(codes))

    def _loss(self, scores: Tensor) -> Tensor:
        loss = listwise(scores, self.columns.gold.to(scores.device), self.columns.allowed.to(scores.device))
        if self.lessons is None:
            return loss
        teacher, listed, weight = self.lessons
        taught = distillation(scores, teacher.to(scores.device), listed.to(scores.device))
        return (1 - weight) * loss + weight * taught

    def _joined(self, encoded: Sequence[Encoded]) -> tuple[ContextCodes, Tensor]:
        """Context vectors (B, M, D) and candidate embeddings (N, D) in the batch's order."""
        n = len(self.context_chunks)
        codes = [ContextCodes(*each) for each in encoded[:n]]
        width = max(each.mask.shape[1] for each in codes)  # chunks differ where the context vectors are token outputs
        vectors = in_order([_widened(each.vectors, width) for each in codes], self.context_chunks)
        mask = in_order([_widened(each.mask, width) for each in codes], self.context_chunks)
        return ContextCodes(vectors, mask), in_order([each for (each,) in encoded[n:]], self.candidate_chunks)


def code_cosine(codes: ContextCodes) -> float:
    """Mean cosine between different context vectors of one context: near 1, they have collapsed into one."""
    units = torch.nn.functional.normalize(codes.vectors.float(), dim=-1) * codes.mask[..., None]
    count = codes.mask.sum(dim=1).float()
    pairs = count * (count - 1)
    total = units.sum(dim=1).square().sum(dim=-1) - count  # sum over i != j of u_i . u_j
    return float((total / pairs.clamp(min=1)).mean())


def _widened(tensor: Tensor, width: int) -> Tensor:
    missing = width - tensor.shape[1]
    return tensor if not missing else torch.cat([tensor, tensor.new_zeros(len(tensor), missing, *tensor.shape[2:])], 1)
