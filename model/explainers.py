"""Explains the scores of models that have a network, by forward passes of their torch modules, whatever serves."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.architectures.attention import poly_scores
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.architectures.sums import Float64, StateSums, Unexplained
from polyrank.model.architectures.vector import VectorEncoder, as_numpy
from polyrank.model.explanation import Explanation, Occluded, code_contributions, pair_contributions, without
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.assembly import Assembler, Conversation, Truncation
from polyrank.model.text.reading import Steps
from polyrank.model.text.sequences import Pairs, PlacedToken


class VectorExplainer:
    """Takes the scores of a VectorEncoder apart. Its forward passes are for the thread of the models.

    `unexplained`: which parts of a score it leaves out, and why (`VectorEncoder.unexplained`).
    """

    def __init__(self, encoder: VectorEncoder, assembler: Assembler) -> None:
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
            states = encoder.context_tokens(TensorBatch.of(batch, self._device))
            return [encoder.context_sums(each) for each in _unpadded(states, contexts)]

    def reply_sums(self, replies: Sequence[list[int]]) -> list[StateSums]:
        """Read tokenised replies in one forward pass; returns each one's vector as a sum over its tokens."""
        encoder = self._encoder
        with torch.inference_mode():
            batch = encoder.candidate_batch(self._config, replies, encoder.candidate.pad_id)
            states = encoder.candidate_tokens(TensorBatch.of(batch, self._device))
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

        context_sums: None if not `reads_context`. reply_sums: None if not `reads_replies`. reply_ids: its tokens.
        """
        if context_sums is None:
            return self._by_pairs(context, reply, reply_ids)
        codes = code_contributions(context_sums, reply.first[0].astype(np.float64))
        pairs = None if reply_sums is None else pair_contributions(context_sums, codes.weights, reply_sums)
        return Explanation(codes.contributions.sum(axis=0), codes, pairs)

    def _by_pairs(self, context: ContextEncoding, reply: Representations, reply_ids: Sequence[int]) -> Explanation:
        if not context.late or reply.late is None:
            return Explanation()
        rows, stored = (torch.from_numpy(each.astype(np.float64)) for each in (context.late[0], reply.late))
        found = self._encoder.explained_pairs(rows, stored)
        if found is None:
            return Explanation()
        _, kept = self._encoder.candidate_layout(self._config, reply_ids)
        assert sum(kept) == len(stored), "rows are stored of the reply's own tokens"
        pairs = np.zeros((len(rows), len(kept)))
        pairs[:, kept] = found.numpy()
        return Explanation(pairs.sum(axis=1), None, pairs)


def _unpadded(states: Tensor, sequences: Sequence[Sequence[int]]) -> list[Float64]:
    """Return the states of each sequence, (T, W)."""
    return [as_numpy(own[: len(ids)]) for own, ids in zip(states, sequences, strict=True)]


class CrossExplainer:
    """Scores pairs of which parts are left out. Its forward passes are for the thread of the models.

    The encoder's own transformer reads such a pair with a mask, so that all other tokens keep their positions. The
    Poly-encoder of a residual one reads a context without the tokens: some of its kinds of context vectors take a text
    to be without holes. `is_residual`: whether a Poly-encoder's score is part of each.
    """

    def __init__(self, encoder: PairEncoder, assembler: Assembler) -> None:
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
        with torch.inference_mode():
            scores = self._encoder.own_scores(pairs, [each.places for each in occluded])
        own = scores.cpu().double().numpy()
        base = self._poly_scores(occluded) if self.is_residual else np.zeros(len(occluded))
        return np.column_stack([own + base, base])

    def _poly_scores(self, occluded: Sequence[Occluded]) -> NDArray[np.float64]:
        poly = self._encoder.poly
        assert poly is not None, "it is residual"
        contexts = [without(pair.contexts[0], places) for pair, places in occluded]
        device = next(poly.parameters()).device
        with torch.inference_mode():
            codes = poly.encode_contexts(TensorBatch.of(pad(contexts, poly.context.pad_id), device)).first
            replies = [pair.candidates[0] for pair, _ in occluded]
            vectors = poly.encode_candidates(TensorBatch.of(pad(replies, poly.candidate.pad_id), device)).first
            scores: NDArray[np.float64] = poly_scores(codes, vectors[:, None])[:, 0].cpu().double().numpy()
        return scores
