"""Explains scores of Cross-encoders by occlusion; runs their torch modules, whatever serves."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.model.architectures.attention import poly_scores
from polyrank.model.architectures.batching import pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.explanation.occlusion import without
from polyrank.model.text.assembly import Assembler, Conversation, Truncation
from polyrank.model.text.pairs import Pairs
from polyrank.model.text.placing import PlacedToken
from polyrank.model.text.steps import Steps


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
