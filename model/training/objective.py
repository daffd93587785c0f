"""What a training step computes: encodings of a batch, chunk by chunk, and a loss over all of them.

A gradient cache gives the exact gradients of a loss over a large batch, in the memory of a small one (Gao et al. 2021,
arXiv 2101.06983).

An in-batch loss couples all examples, so a batch cannot simply be split. But it couples them only through their
representations. So: encode the chunks without keeping their graphs, take the loss's gradient with respect to the
representations, then encode each chunk again, with its graph, and push its part of that gradient through. Dropout must
fall alike both times, so the random state before each chunk is kept.

Axes of losses: B contexts, N candidates (columns). `allowed` is True where a column may count in a row's softmax: the
row's own gold reply, and every candidate that is not another correct reply of that row.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.vector import unit_length
from polyrank.model.checkpoint.read import Encoder
from polyrank.model.measures import Ties
from polyrank.model.rankers.networks import NetworkRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.data import WordsInLoss
from polyrank.model.training.student import Student

_NOTHING_SAID = Conversation(())


Encoded = tuple[Tensor, ...]
"""What one chunk gives: representations (floating), and tensors that no gradient goes through, such as masks."""

Encode = Callable[[], Encoded]
"""Encodes one chunk."""


class Batch(NamedTuple):
    """Rows for one backward pass, and the `draw` that chooses negatives where an objective does not use all of them.

    number: which batch of the run it is, from 0; None: one of the selection slice.
    """

    examples: Sequence[Dialogue]
    others: Sequence[Dialogue]
    draw: random.Random
    number: int | None = None


class ScoredBatch(NamedTuple):
    """A batch after its forward passes: its loss, a scalar, and what its figures are made of.

    scores: (B, N). gold: column of each row's gold reply, (B,). allowed: columns that count in each row, (B, N).
    codes: the context vectors, where there are any.
    """

    loss: Tensor
    scores: Tensor
    gold: Tensor
    allowed: Tensor
    codes: ContextCodes | None = None


class Prepared(NamedTuple):
    """A batch in tokens. chunks: each encodes a part of it. scored: joins what the chunks gave."""

    chunks: list[Encode]
    scored: Callable[[Sequence[Encoded]], ScoredBatch]


SCALES = 2.0 ** torch.arange(-6, 6.5, 0.5)


class Measured(NamedTuple):
    """Figures of one batch: loss, rows whose gold reply came first, rows, likeness of the context vectors.

    rescaled: mean cross entropy of the gold replies where scores are multiplied by each of SCALES.
    """

    loss: float
    first: float
    rows: int
    rescaled: Sequence[float]
    code_cosine: float = 0.0


E = TypeVar("E", bound=Encoder)
C = TypeVar("C", bound=TrainConfig)


class Objective(ABC, Generic[E, C]):
    """Trains one kind of encoder, with the settings of its kind."""

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, words: WordsInLoss | None = None
    ) -> None:
        """Load what it needs. `words` count beside the network, or beside the first stage of a Cross-encoder."""
        self._encoder, self._config = cast(E, student.encoder), cast(C, config)
        self._assembler, self._device, self._words = student.assembler, device, words
        self.models: dict[str, NetworkRanker] = {}  # other models that it uses, by the setting that names them
        by_score = config.class_from == "score"
        self._labels = tuple(Dialogue(_NOTHING_SAID, name) for name in config.labels) if by_score else ()
        self._batch_size = config.batch_size
        self._run = cached_backward if config.gradient_cache else plain_backward

    def take(self, examples: Iterator[Dialogue]) -> list[Dialogue]:
        return list(islice(examples, self._batch_size))

    @abstractmethod
    def prepare(self, batch: Batch) -> Prepared:
        """Tokenise a batch and cut it into chunks of similar length."""

    def step(self, batch: Batch, backward: Callable[[Tensor], None]) -> float:
        """Add the gradients of a batch to the parameters; returns its loss."""
        prepared = self.prepare(self._with_labels(batch))
        return self._run(prepared.chunks, lambda encoded: prepared.scored(encoded).loss, backward).item()

    @torch.no_grad()
    def measure(self, batch: Batch) -> Measured:
        """Return the figures of a batch without training on it."""
        prepared = self.prepare(self._with_labels(batch))
        loss, scores, gold, allowed, codes = prepared.scored([encode() for encode in prepared.chunks])
        cosine = 0.0 if codes is None else code_cosine(codes)
        return Measured(
            loss.item(), gold_first(scores, gold, allowed), len(scores), rescaled(scores, gold, allowed), cosine
        )

    def _with_labels(self, batch: Batch) -> Batch:
        """Let every class compete in every batch, where scores of their names tell the classes."""
        return batch._replace(others=(*batch.others, *self._labels))


AnyObjective = Objective[Any, Any]


def rescaled(scores: Tensor, gold: Tensor, allowed: Tensor) -> list[float]:
    """Return the mean cross entropy of the gold replies at each of SCALES. Arguments as in ScoredBatch."""
    known = allowed.scatter(1, gold[:, None], True)
    own = scores.float()
    return [F.cross_entropy((own * scale).masked_fill(~known, -torch.inf), gold).item() for scale in SCALES.tolist()]


def gold_first(scores: Tensor, gold: Tensor, allowed: Tensor) -> float:
    """Count the rows whose gold reply is first; of n that tie there, as 1 / n. Arguments as in ScoredBatch.

    A row with a score that is no finite number counts as 0.

    >>> scores = torch.tensor([[1.0, 0.0], [1.0, 1.0], [torch.nan, torch.nan]])
    >>> gold_first(scores, torch.tensor([0, 0, 0]), torch.ones(3, 2, dtype=torch.bool))
    1.5
    """
    known = allowed.scatter(1, gold[:, None], True).cpu().numpy()
    rows = zip(scores.float().cpu().numpy(), gold.tolist(), known, strict=True)
    return sum(
        Ties.of(own[counts], np.flatnonzero(counts) == right).found(1)
        for own, right, counts in rows
        if np.isfinite(own[counts]).all()
    )


def in_order(chunks: Sequence[Tensor], positions: Sequence[Sequence[int]]) -> Tensor:
    """Join chunks along the first axis, and move row i of chunk c to `positions[c][i]`.

    >>> in_order([torch.tensor([7.0, 8.0]), torch.tensor([9.0])], [[2, 0], [1]]).tolist()
    [8.0, 9.0, 7.0]
    """
    joined = torch.cat(list(chunks))
    order = torch.tensor([position for chunk in positions for position in chunk], device=joined.device)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=joined.device)
    return joined[back]


def code_cosine(codes: ContextCodes) -> float:
    """Compute the mean cosine between different vectors of one context: near 1, they have collapsed into one."""
    units = unit_length(codes.vectors) * codes.mask[..., None]
    count = codes.mask.sum(dim=1).float()
    pairs = count * (count - 1)
    total = units.sum(dim=1).square().sum(dim=-1) - count  # sum over i != j of u_i . u_j
    return float((total / pairs.clamp(min=1)).mean())


def classes_of(examples: Sequence[Dialogue], config: TrainConfig) -> Tensor:
    """Return the class of each example, (B,)."""
    return torch.tensor([config.labels.index(each.category) for each in examples])


def told(logits: Tensor, classes: Tensor) -> ScoredBatch:
    """Logits (B, C) and classes (B,); a look's share of rows that came first is then the accuracy."""
    gold = classes.to(logits.device)
    return ScoredBatch(F.cross_entropy(logits.float(), gold), logits, gold, torch.ones_like(logits, dtype=torch.bool))


def listwise(scores: Tensor, gold: Tensor, allowed: Tensor) -> Tensor:
    """Cross entropy of the gold reply against its negatives.

    With the batch's other replies as negatives this is the in-batch loss of Humeau et al. 4.2; with a retriever's best
    results as negatives it is LCE (Gao et al. 2021).

    scores: (B, N). gold: column of each row's gold reply, (B,) int64. allowed: (B, N). Returns the mean over rows.

    >>> scores = torch.tensor([[0.0, 0.0, 99.0]])
    >>> round(listwise(scores, torch.tensor([0]), torch.tensor([[True, True, False]])).item(), 4)  # ln 2
    0.6931
    """
    return F.cross_entropy(scores.float().masked_fill(~allowed, float("-inf")), gold)


def pointwise(scores: Tensor, gold: Tensor, allowed: Tensor) -> Tensor:
    """Binary cross entropy of each pair on its own (Nogueira & Cho 2019).

    `-log sigma(s+) - sum log(1 - sigma(s-))`, the mean over rows; arguments as `listwise`.

    >>> round(pointwise(torch.zeros(1, 2), torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool)).item(), 4)  # 2 ln 2
    1.3863
    """
    is_gold = F.one_hot(gold, scores.shape[1]).bool()
    signed = torch.where(is_gold, scores, -scores).float()
    return -(F.logsigmoid(signed) * allowed).sum(dim=1).mean()


def distillation(student: Tensor, teacher: Tensor, allowed: Tensor) -> Tensor:
    """KL divergence from the teacher's distribution over a row's candidates to the student's.

    student, teacher, allowed: (B, N). Returns the mean over rows; zero where both rank with equal confidence.

    >>> scores = torch.tensor([[2.0, 0.0]])
    >>> distillation(scores, scores + 5, torch.ones(1, 2, dtype=torch.bool)).item()
    0.0
    """
    log_student = student.float().masked_fill(~allowed, float("-inf")).log_softmax(dim=1)
    log_teacher = teacher.float().masked_fill(~allowed, float("-inf")).log_softmax(dim=1)
    terms = log_teacher.exp() * (log_teacher - log_student)
    return terms.masked_fill(~allowed, 0.0).sum(dim=1).mean()


def cached_backward(
    chunks: Sequence[Encode], loss_of: Callable[[Sequence[Encoded]], Tensor], backward: Callable[[Tensor], None]
) -> Tensor:
    """Add the gradients of `loss_of([encode() for encode in chunks])` to the parameters.

    Every chunk is encoded twice, with the same random state. `backward` runs autograd from the loss, which it may scale
    (accumulation, half precision). Returns the loss, detached.
    """
    states, leaves = [], list[Encoded]()
    for encode in chunks:
        states.append(_random_state())
        with torch.no_grad():
            leaves.append(tuple(tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in encode()))
    after = _random_state()
    loss = loss_of(leaves)
    backward(loss)
    for encode, state, held in zip(chunks, states, leaves, strict=True):
        _set_random_state(state)
        learning = [(tensor, leaf.grad) for tensor, leaf in zip(encode(), held, strict=True) if leaf.requires_grad]
        torch.autograd.backward([tensor for tensor, _ in learning], [gradient for _, gradient in learning])
    _set_random_state(after)
    return loss.detach()


def plain_backward(
    chunks: Sequence[Encode], loss_of: Callable[[Sequence[Encoded]], Tensor], backward: Callable[[Tensor], None]
) -> Tensor:
    """The same with all graphs in memory at once: one forward instead of two; arguments as `cached_backward`."""
    loss = loss_of([encode() for encode in chunks])
    backward(loss)
    return loss.detach()


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
