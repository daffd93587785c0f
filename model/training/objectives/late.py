"""How Bi- and Poly-encoders are trained: in-batch loss with listed negatives, and distillation from a teacher."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.rankers.load import load_cross
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import LateTrainConfig, TrainConfig
from polyrank.model.training.data.columns import Columns, columns
from polyrank.model.training.data.words import PairWords
from polyrank.model.training.objectives.gradient_cache import Encoded
from polyrank.model.training.objectives.losses import distillation, listwise
from polyrank.model.training.objectives.objective import Batch, Objective, Prepared, ScoredBatch, in_order
from polyrank.model.training.student.student import Student


class LateObjective(Objective):
    """In-batch loss of a Bi- or Poly-encoder, with distillation where there is a teacher."""

    settings = LateTrainConfig

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, words: PairWords | None = None
    ) -> None:
        super().__init__(student, config, device, words)
        assert isinstance(student.encoder, LateEncoder)
        assert isinstance(config, LateTrainConfig)
        self._encoder = student.encoder
        self._config = config
        self._teacher = load_cross(config.teacher) if config.teacher else None
        self.models = {"teacher": self._teacher} if self._teacher else {}

    def prepare(self, batch: Batch) -> Prepared:
        """Tokenise contexts and candidates; the teacher scores each row's listed ones."""
        found = columns(batch.examples, batch.others, self._config.negatives)
        contexts = [self._assembler.context(example.conversation)[0] for example in batch.examples]
        candidates, _ = self._assembler.candidates(found.texts)
        budget = self._config.chunk_tokens
        context_chunks = length_batches([len(ids) for ids in contexts], budget)
        candidate_chunks = length_batches([len(ids) for ids in candidates], budget)
        taught = self._teacher_scores(batch.examples, found)
        return Prepared(
            [
                *[partial(self._encode_contexts, [contexts[row] for row in chunk]) for chunk in context_chunks],
                *[
                    partial(self._encode_candidates, [candidates[column] for column in chunk])
                    for chunk in candidate_chunks
                ],
            ],
            partial(self._scored, context_chunks, candidate_chunks, found, taught),
        )

    def _encode_contexts(self, contexts: Sequence[list[int]]) -> Encoded:
        return self._encoder.encode_context(pad(contexts, self._encoder.context.pad_id).to(self._device))

    def _encode_candidates(self, candidates: Sequence[list[int]]) -> Encoded:
        return (self._encoder.encode_candidates(pad(candidates, self._encoder.candidate.pad_id).to(self._device)),)

    def _teacher_scores(self, examples: Sequence[Dialogue], found: Columns) -> Tensor | None:
        """The teacher's scores of each row's gold reply and listed negatives, (B, N)."""
        if self._teacher is None:
            return None
        scores = torch.zeros(found.listed.shape)
        for row, example in enumerate(examples):
            listed = found.listed[row].nonzero()[:, 0].tolist()
            pairs, _ = self._teacher.tokenize_pairs(example.conversation, [found.texts[column] for column in listed])
            scores[row, listed] = torch.from_numpy(self._teacher.score_pairs(pairs))
        return scores

    def _scored(
        self,
        context_chunks: list[list[int]],
        candidate_chunks: list[list[int]],
        found: Columns,
        taught: Tensor | None,
        encoded: Sequence[Encoded],
    ) -> ScoredBatch:
        n = len(context_chunks)
        codes = _joined([ContextCodes(*tensors) for tensors in encoded[:n]], context_chunks)
        scores = poly_scores(codes, in_order([embeddings for (embeddings,) in encoded[n:]], candidate_chunks))
        gold, allowed, listed = (tensor.to(scores.device) for tensor in found[1:])
        loss = listwise(scores, gold, allowed)
        if taught is not None:
            weight = self._config.teacher_weight
            loss = (1 - weight) * loss + weight * distillation(scores, taught.to(scores.device), listed)
        return ScoredBatch(loss, scores, gold, allowed, codes)


def _joined(chunks: Sequence[ContextCodes], positions: Sequence[Sequence[int]]) -> ContextCodes:
    """All context vectors, (B, M, D); where they are token outputs, the longest chunk has the most."""
    width = max(chunk.mask.shape[1] for chunk in chunks)
    vectors = in_order([_widened(chunk.vectors, width) for chunk in chunks], positions)
    return ContextCodes(vectors, in_order([_widened(chunk.mask, width) for chunk in chunks], positions))


def _widened(tensor: Tensor, width: int) -> Tensor:
    missing = width - tensor.shape[1]
    return tensor if not missing else torch.cat([tensor, tensor.new_zeros(len(tensor), missing, *tensor.shape[2:])], 1)
