"""Where a score comes from: what each token of the context, each code and each token of the reply adds.

The score of a Poly-encoder is a sum, and is taken apart in float64, without approximation. Axes: M context vectors, T
tokens of the context, K tokens of the reply, D dimensions. With the context vectors `y_i = sum_t f_i a_it h_t`
(`StateSums`) and the reply's vector v, the score is `S = sum_i w_i s_i` with `s_i = y_i . v` and `w = softmax(s)`
(docs/explanation/mathematics.md). So it is the sum over codes and tokens of

    C_it = w_i f_i a_it (h_t . v)

A score has no zero: adding the same number to all s_i adds it to the score of every reply. What tells replies apart is
a contribution less that to the other replies (`relative`).

A Cross-encoder's score is no sum. There a part of the context is left out, and what the score loses is told. That is
not additive: what two parts say together is lost with each of them. Source of the idea: Zeiler and Fergus 2014,
"Visualizing and Understanding Convolutional Networks", section 4.2.

Both run the torch modules of a model, whatever serves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.architectures.attention import StateSums, poly_scores
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder, Unexplained
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.assembly import Assembler, Conversation, Truncation
from polyrank.model.text.reading import Steps
from polyrank.model.text.sequences import Pairs, PlacedToken


class CodeContributions(NamedTuple):
    """What each context vector and each token of the context add to the score of one reply.

    attention: a, (M, T): how much each context vector takes of each token. scores: s, (M,). weights: w, (M,).
    contributions: C, (M, T), whose sum is the score.
    """

    attention: Tensor
    scores: Tensor
    weights: Tensor
    contributions: Tensor

    @property
    def effective(self) -> float:
        """How many context vectors took part: e to the power of the entropy of their weights, from 1 to M."""
        return float(torch.special.entr(self.weights).sum().exp())

    def without_each(self) -> Tensor:
        """Return the score without each of the context vectors, (M,); NaN where it is the only one.

        The others share its weight: it is `(S - w_i s_i) / (1 - w_i)`, computed without the cancellation.
        """
        count = len(self.scores)
        others = self.scores.expand(count, -1).masked_fill(torch.eye(count, dtype=torch.bool), float("-inf"))
        weights = others.softmax(dim=-1)
        return (weights * self.scores).sum(dim=-1) if count > 1 else torch.full((1,), torch.nan, dtype=torch.float64)


def code_contributions(context: StateSums, reply: Tensor) -> CodeContributions:
    """Take the score of a reply's vector (D,) apart."""
    parts = context.factors[:, None] * context.weights * (context.values @ reply)  # (M, T)
    scores = parts.sum(dim=-1)
    weights = scores.softmax(dim=-1)
    return CodeContributions(context.weights, scores, weights, weights[:, None] * parts)


def pair_contributions(context: StateSums, weights: Tensor, reply: StateSums) -> Tensor:
    """Return what each token of the context with each of the reply adds to the score, (T, K).

    The reply's vector is the sum `v = sum_k f b_k g_k` over its own tokens, so that

        J_tk = sum_i w_i f_i a_it f b_k (h_t . g_k)

    The score less their sum is what a stored vector was rounded by. weights: w, (M,), of the stored vector.
    """
    of_context = (weights * context.factors) @ context.weights  # (T,)
    of_reply = reply.factors[0] * reply.weights[0]  # (K,)
    return of_context[:, None] * of_reply * (context.values @ reply.values.T)


def relative(contributions: Tensor, against: int | None) -> Tensor:
    """Return what speaks for each of N replies beside the others, (N, T), from what tokens contribute, (N, T).

    against: the reply that the others are compared with; None: the mean of all.

    >>> relative(torch.tensor([[3.0, 0.0], [1.0, 2.0]]), None).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    return contributions - (contributions.mean(dim=0) if against is None else contributions[against])


By = Literal["turns", "words"]


class Unit(NamedTuple):
    """A part of a context that is left out.

    Attributes:
        turn, persona, start, end: as in `PlacedToken`.
        places: of its tokens.
    """

    turn: int | None
    persona: int | None
    start: int
    end: int
    places: tuple[int, ...]


_KEYS: dict[By, Callable[[PlacedToken], object]] = {
    "turns": lambda token: (token.turn, token.persona),
    "words": lambda token: token.word,
}


def units(tokens: Sequence[PlacedToken], by: By) -> list[Unit]:
    """Return the turns and sentences of the persona, or the words, of a context's tokens, in their order."""
    groups: dict[object, list[int]] = {}
    for place, token in enumerate(tokens):
        if token.start is not None:
            groups.setdefault(_KEYS[by](token), []).append(place)
    return [_unit(tokens, places) for places in groups.values()]


def _unit(tokens: Sequence[PlacedToken], places: Sequence[int]) -> Unit:
    own = [tokens[place] for place in places]
    start, end = min(each.start or 0 for each in own), max(each.end or 0 for each in own)
    return Unit(own[0].turn, own[0].persona, start, end, tuple(places))


def without(ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return token ids without those at some places."""
    left_out = {*places}
    return [id_ for place, id_ in enumerate(ids) if place not in left_out]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a reply's score by vectors consists of; T tokens of the context, K of the reply, all float64.

    Attributes:
        tokens: what each token of the context adds, (T,); None: it is no sum over them.
        codes: the same by context vector; None: there are none, or `tokens` is None.
        pairs: what each token of the context adds with each of the reply, (T, K); None: it is no sum over them.
    """

    tokens: Tensor | None = None
    codes: CodeContributions | None = None
    pairs: Tensor | None = None


class LateExplainer:
    """Takes the scores of a LateEncoder apart. Its forward passes are for the thread of the models.

    Attributes:
        unexplained: which parts of a score it leaves out, and why (`LateEncoder.unexplained`).
    """

    def __init__(self, encoder: LateEncoder, assembler: Assembler) -> None:
        self.unexplained: dict[Unexplained, str] = encoder.unexplained(encoder.config)
        self._encoder, self._config, self._assembler = encoder, encoder.config, assembler
        self._second_stage = encoder.late_rows(encoder.config, encoder.context.dim) is not None
        self._first_stage = not self._second_stage or encoder.counts_first_stage(encoder.config)

    @property
    def reads_context(self) -> bool:
        """Whether `explain` needs the sums of the context."""
        return self._first_stage and "tokens" not in self.unexplained

    @property
    def reads_replies(self) -> bool:
        """Whether the tokens of replies are told by the sums of replies."""
        return self.reads_context and "reply_tokens" not in self.unexplained

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[PlacedToken], Truncation]]:
        """Make the tokens of a context, in steps; also returns what did not fit."""
        return self._assembler.placed_context_steps(conversation)

    def reply_steps(self, texts: Sequence[str]) -> Steps[list[list[PlacedToken]]]:
        """Make the tokens of each reply, in steps."""
        return self._assembler.placed_candidate_steps(texts)

    def context_tokens(self, tokens: Sequence[PlacedToken]) -> list[PlacedToken]:
        """Return the T tokens of a context in the order of `Explanation`, with those that the architecture adds."""
        ids = [token.id for token in tokens]
        layout = self._encoder.context_layout(self._config, len(ids))
        return self._laid_out(tokens, layout, self._encoder.context_batch(self._config, [ids], 0))

    def reply_tokens(self, tokens: Sequence[PlacedToken]) -> list[PlacedToken]:
        """Return the K tokens of a reply, likewise."""
        ids = [token.id for token in tokens]
        layout, _ = self._encoder.candidate_layout(self._config, ids)
        return self._laid_out(tokens, layout, self._encoder.candidate_batch(self._config, [ids], 0))

    def _laid_out(
        self, tokens: Sequence[PlacedToken], layout: Sequence[int | None], batch: TokenBatch
    ) -> list[PlacedToken]:
        name_of, ids = self._assembler.tokenizer.name_of, batch.ids[0].tolist()
        return [
            PlacedToken(id_, name_of(id_)) if place is None else tokens[place]
            for place, id_ in zip(layout, ids, strict=True)
        ]

    def context_sums(self, contexts: Sequence[list[int]]) -> list[StateSums]:
        """Read tokenised contexts in one forward pass; returns each one's vectors as sums over its tokens."""
        encoder = self._encoder
        with torch.inference_mode():
            batch = encoder.context_batch(self._config, contexts, encoder.context.pad_id)
            states = encoder.context_tokens(batch.to(self._device))
            return [encoder.context_sums(each) for each in _unpadded(states, contexts)]

    def reply_sums(self, replies: Sequence[list[int]]) -> list[StateSums]:
        """Read tokenised replies in one forward pass; returns each one's vector as a sum over its tokens."""
        encoder = self._encoder
        with torch.inference_mode():
            batch = encoder.candidate_batch(self._config, replies, encoder.candidate.pad_id)
            states = encoder.candidate_tokens(batch.to(self._device))
            return [encoder.candidate_sums(each) for each in _unpadded(states, replies)]

    @property
    def _device(self) -> torch.device:
        return next(self._encoder.parameters()).device

    def explain(
        self,
        context: ContextEncoding,
        context_sums: StateSums | None,
        reply: Representations,
        reply_sums: StateSums | None,
        reply_ids: Sequence[int],
    ) -> Explanation:
        """Take the score of one reply apart; without a forward pass.

        Args:
            context: what the model made of the context.
            context_sums: of `context_sums`; None: not `reads_context`.
            reply: what is stored of the reply, or was made of it.
            reply_sums: of `reply_sums`; None: not `reads_replies`.
            reply_ids: its tokens.
        """
        if context_sums is None:
            return self._by_pairs(context, reply, reply_ids)
        codes = code_contributions(context_sums, torch.from_numpy(reply.first[0].astype(np.float64)))
        pairs = None if reply_sums is None else pair_contributions(context_sums, codes.weights, reply_sums)
        return Explanation(codes.contributions.sum(dim=0), codes, pairs)

    def _by_pairs(self, context: ContextEncoding, reply: Representations, reply_ids: Sequence[int]) -> Explanation:
        """Take a second stage apart."""
        if not context.late or reply.late is None:
            return Explanation()
        rows, stored = (torch.from_numpy(each.astype(np.float64)) for each in (context.late[0], reply.late))
        found = self._encoder.explained_pairs(rows, stored)
        if found is None:
            return Explanation()
        _, kept = self._encoder.candidate_layout(self._config, reply_ids)
        assert sum(kept) == len(stored), "rows are stored of the reply's own tokens"
        pairs = torch.zeros(len(rows), len(kept), dtype=torch.float64)
        pairs[:, torch.tensor(kept)] = found
        return Explanation(pairs.sum(dim=1), None, pairs)


def _unpadded(states: Tensor, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the states of each sequence, (T, W) float64."""
    return [own[: len(ids)].cpu().double() for own, ids in zip(states, sequences, strict=True)]


class Occluded(NamedTuple):
    """One pair, and the places of the context's tokens that are left out of it."""

    pair: Pairs
    places: tuple[int, ...]


class CrossExplainer:
    """Scores pairs of which parts are left out. Its forward passes are for the thread of the models.

    The Cross-encoder's own transformer reads such a pair with a mask, so that all other tokens keep their positions.
    The Poly-encoder of a residual one reads a context without the tokens: some of its kinds of context vectors take a
    text to be without holes.

    Attributes:
        is_residual: whether a Poly-encoder's score is part of each.
    """

    def __init__(self, encoder: CrossEncoder, assembler: Assembler) -> None:
        self.is_residual = encoder.poly is not None
        self._encoder, self._assembler = encoder, assembler

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[PlacedToken], Truncation]]:
        """Make the tokens of a context as pairs hold it, in steps; also returns what did not fit."""
        return self._assembler.placed_pair_context_steps(conversation)

    def scores(self, occluded: Sequence[Occluded]) -> NDArray[np.float64]:
        """Score pairs in one forward pass: the whole score and the Poly-encoder's part of it, (B, 2).

        That part is 0 where there is no Poly-encoder.
        """
        pairs = Pairs.join([each.pair for each in occluded])
        batch = CrossEncoder.join(pairs, self._encoder.encoder.pad_id)
        for row, (_, places) in enumerate(occluded):
            batch.mask[row, list(places)] = False
        with torch.inference_mode():
            own = self._encoder.joint_scores(batch.to(next(self._encoder.parameters()).device)).cpu().double().numpy()
        base = self._poly_scores(occluded) if self.is_residual else np.zeros(len(occluded))
        return np.column_stack([own + base, base])

    def _poly_scores(self, occluded: Sequence[Occluded]) -> NDArray[np.float64]:
        poly = self._encoder.poly
        assert poly is not None, "it is residual"
        contexts = [without(pair.contexts[0], places) for pair, places in occluded]
        device = next(poly.parameters()).device
        with torch.inference_mode():
            codes = poly.encode_contexts(pad(contexts, poly.context.pad_id).to(device)).first
            replies = [pair.candidates[0] for pair, _ in occluded]
            vectors = poly.encode_candidates(pad(replies, poly.candidate.pad_id).to(device)).first
            scores: NDArray[np.float64] = poly_scores(codes, vectors[:, None])[:, 0].cpu().double().numpy()
        return scores
