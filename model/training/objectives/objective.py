"""What one step computes: encode a batch in chunks, score it, and send the loss's gradient back."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.architectures.bi import BiEncoder
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.search.topk import scores_of
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.data.batch import CrossBatch, LateBatch, cross_batch, late_batch
from polyrank.model.training.data.stream import Batch
from polyrank.model.training.objectives.gradient_cache import Encode, cached_backward, plain_backward
from polyrank.model.training.objectives.losses import distillation, listwise, pointwise
from polyrank.model.training.student.student import Student


class Measured(NamedTuple):
    """Of one batch, without training on it: loss, rows whose gold reply came first, rows, likeness of the codes."""

    loss: float
    first: int
    rows: int
    code_cosine: float = 0.0


class LateObjective:
    """In-batch loss of a Bi- or Poly-encoder, with listed negatives, and distillation where there is a teacher."""

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, teacher: CrossRanker | None
    ) -> None:
        assert not isinstance(student.encoder, CrossEncoder)
        self._encoder = student.encoder
        self._assembler = student.assembler
        self._config = config
        self._device = device
        self._teacher = teacher
        self._backward = cached_backward if config.gradient_cache else plain_backward

    def step(self, drawn: Batch, draw: random.Random, backward: Callable[[Tensor], None]) -> float:
        """Add a batch's gradients to the parameters; returns its loss."""
        batch = late_batch(self._assembler, drawn.examples, drawn.others, self._config.negatives)
        chunks = _Chunks(self._encoder, batch, self._config.chunk_tokens, self._device)
        taught = self._teacher_scores(batch)

        def loss_of(encoded: list[Tensor]) -> Tensor:
            return self._loss(poly_scores(*chunks.joined(encoded)), batch, taught)

        return self._backward(chunks.encode, loss_of, backward).item()

    def measure(self, examples: Sequence[Dialogue], draw: random.Random) -> Measured:
        """Loss and rank of the gold replies, without gradients."""
        batch = late_batch(self._assembler, examples, (), self._config.negatives)
        chunks = _Chunks(self._encoder, batch, self._config.chunk_tokens, self._device)
        with torch.no_grad():
            codes, embeddings = chunks.joined([encode() for encode in chunks.encode])
            scores = poly_scores(codes, embeddings)
            loss = self._loss(scores, batch, self._teacher_scores(batch))
        first = _gold_first(scores.cpu(), batch.columns.gold, batch.columns.allowed)
        return Measured(loss.item(), first, len(examples), code_cosine(codes))

    def _loss(self, scores: Tensor, batch: LateBatch, taught: Tensor | None) -> Tensor:
        gold, allowed, listed = (each.to(scores.device) for each in batch.columns[1:])
        loss = listwise(scores, gold, allowed)
        if taught is None:
            return loss
        weight = self._config.teacher_weight
        return (1 - weight) * loss + weight * distillation(scores, taught.to(scores.device), listed)

    def _teacher_scores(self, batch: LateBatch) -> Tensor | None:
        """The teacher's scores of each row's gold reply and listed negatives, (B, N)."""
        if self._teacher is None:
            return None
        columns = batch.columns
        scores = torch.zeros(columns.listed.shape)
        for row, example in enumerate(batch.examples):
            listed = columns.listed[row].nonzero()[:, 0].tolist()
            pairs, _ = self._teacher.tokenize_pairs(example.conversation, [columns.texts[each] for each in listed])
            scores[row, listed] = torch.from_numpy(self._teacher.score_pairs(pairs))
        return scores


class CrossObjective:
    """Listwise (LCE) or point-wise loss of a Cross-encoder over each row's own few candidates."""

    def __init__(self, student: Student, config: TrainConfig, retriever: LateRanker | None) -> None:
        assert isinstance(student.encoder, CrossEncoder)
        self._retriever = retriever
        self._encoder = student.encoder
        self._assembler = student.assembler
        self._config = config
        self._backward = cached_backward if config.gradient_cache else plain_backward

    def step(self, drawn: Batch, draw: random.Random, backward: Callable[[Tensor], None]) -> float:
        """Add a batch's gradients to the parameters; returns its loss."""
        batch = self._batch(drawn.examples, drawn.others, draw)
        chunks, order = self._chunks(batch)

        def loss_of(encoded: list[Tensor]) -> Tensor:
            return self._loss(_in_order(encoded, order), batch.width)

        return self._backward(chunks, loss_of, backward).item()

    def measure(self, examples: Sequence[Dialogue], draw: random.Random) -> Measured:
        """Loss and rank of the gold replies, without gradients."""
        batch = self._batch(examples, (), draw)
        chunks, order = self._chunks(batch)
        with torch.no_grad():
            scores = _in_order([encode() for encode in chunks], order)
            loss = self._loss(scores, batch.width)
        rows = scores.cpu().view(-1, batch.width)
        first = _gold_first(rows, torch.zeros(len(rows), dtype=torch.int64), torch.ones_like(rows, dtype=torch.bool))
        return Measured(loss.item(), first, len(examples))

    def _loss(self, scores: Tensor, width: int) -> Tensor:
        rows = scores.view(-1, width)
        gold = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        loss = listwise if self._config.loss == "listwise" else pointwise
        return loss(rows, gold, torch.ones_like(rows, dtype=torch.bool))

    def _batch(self, examples: Sequence[Dialogue], others: Sequence[Dialogue], draw: random.Random) -> CrossBatch:
        score = None if self._retriever is None else partial(_retriever_scores, self._retriever)
        return cross_batch(self._assembler, examples, others, self._config.negatives, draw, score)

    def _chunks(self, batch: CrossBatch) -> tuple[list[Encode], list[int]]:
        order = self._encoder.batches(batch.pairs, self._config.chunk_tokens)
        chunks: list[Encode] = [partial(self._encoder.score_pairs, batch.pairs.take(positions)) for positions in order]
        return chunks, [each for positions in order for each in positions]


class _Chunks:
    """A late batch in chunks of like length: how to encode each, and how the results are put together again."""

    def __init__(self, encoder: BiEncoder | PolyEncoder, batch: LateBatch, budget: int, device: torch.device) -> None:
        context_chunks = length_batches([len(each) for each in batch.contexts], budget)
        candidate_chunks = length_batches([len(each) for each in batch.candidates], budget)
        self._context_order = [each for positions in context_chunks for each in positions]
        self._candidate_order = [each for positions in candidate_chunks for each in positions]
        self._present: list[Tensor] = [torch.empty(0)] * len(context_chunks)

        def of_contexts(chunk: int, positions: list[int]) -> Encode:
            tokens = pad([batch.contexts[each] for each in positions], encoder.context.pad_id).to(device)

            def encode() -> Tensor:
                codes = encoder.encode_context(tokens)
                self._present[chunk] = codes.mask
                return codes.vectors

            return encode

        def of_candidates(positions: list[int]) -> Encode:
            tokens = pad([batch.candidates[each] for each in positions], encoder.candidate.pad_id).to(device)
            return lambda: encoder.encode_candidates(tokens)

        self.encode = [of_contexts(chunk, positions) for chunk, positions in enumerate(context_chunks)]
        self.encode += [of_candidates(positions) for positions in candidate_chunks]

    def joined(self, encoded: list[Tensor]) -> tuple[ContextCodes, Tensor]:
        """Context vectors (B, M, D) and candidate embeddings (N, D) in the batch's order."""
        n = len(self._present)
        width = max(each.shape[1] for each in self._present)  # kinds that take outputs: as many as the chunk has tokens
        vectors = _in_order([_widened(each, width) for each in encoded[:n]], self._context_order)
        present = _in_order([_widened(each, width) for each in self._present], self._context_order)
        return ContextCodes(vectors, present), _in_order(encoded[n:], self._candidate_order)


def _retriever_scores(retriever: LateRanker, examples: Sequence[Dialogue], texts: Sequence[str]) -> Tensor:
    """Scores (B, N) of the texts as replies to each example."""
    embeddings = retriever.encode_candidates(retriever.tokenize_candidates(texts)[0])
    contexts = [retriever.tokenize_context(example.conversation)[0] for example in examples]
    return torch.stack([torch.from_numpy(scores_of(embeddings, each)) for each in retriever.encode_contexts(contexts)])


def _gold_first(scores: Tensor, gold: Tensor, allowed: Tensor) -> int:
    """Rows whose gold reply is strictly ahead of all others that count: a model that ranks nothing has none.

    >>> scores = torch.tensor([[1.0, 0.0], [1.0, 1.0], [torch.nan, torch.nan]])
    >>> _gold_first(scores, torch.tensor([0, 0, 0]), torch.ones(3, 2, dtype=torch.bool))
    1
    """
    own = scores.gather(1, gold[:, None])
    others = allowed.scatter(1, gold[:, None], False)
    ahead = ((own > scores) | ~others).all(dim=1)
    return int((ahead & own[:, 0].isfinite()).sum())


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


def _in_order(chunks: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    joined = torch.cat(list(chunks))
    back = torch.empty(len(order), dtype=torch.int64, device=joined.device)
    back[torch.tensor(order, device=joined.device)] = torch.arange(len(order), device=joined.device)
    return joined[back]
