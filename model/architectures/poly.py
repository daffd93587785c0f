"""Poly-encoder: several context vectors, attended to by each candidate (Humeau et al. 4.4, Appendix C)."""

import torch
from torch import Tensor, nn

from polyrank.model.architectures.attention import (
    ContextCodes,
    code_attention,
    first_outputs,
    last_and_first_outputs,
    last_outputs,
)
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.sums import Float64, StateSums, code_sums, of_length_one, output_sums
from polyrank.model.architectures.vector import VectorEncoder, as_numpy, unit_length
from polyrank.model.config import ModelConfig

_OUTPUTS = {"first": first_outputs, "last": last_outputs, "last+first": last_and_first_outputs}


class PolyEncoder(VectorEncoder):
    """Context vectors from learnt codes or fixed outputs; the candidate side is the Bi-encoder's.

    `code_vectors`: the learnt codes c_i, (M, D); None where the context vectors are token outputs.
    """

    code_vectors: nn.Parameter | None

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__(config, context, candidate)
        self.register_parameter("code_vectors", None)
        if config.context_vectors == "codes":
            # The paper says "randomly initialised". Mean 0, standard deviation D**-0.5.
            codes = torch.empty(config.n_codes, context.dim).normal_(mean=0.0, std=context.dim**-0.5)
            self.code_vectors = nn.Parameter(codes)

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return the context vectors y_i, (B, M, D), with the score scale multiplied in, and which exist, (B, M).

        Under `normalize`: `h_j := h_j/|h_j|` before the attention and `y_i := y_i/|y_i|` after it.
        """
        if self.config.normalize:
            states = unit_length(states)
        if self.code_vectors is None:
            vectors, present = _OUTPUTS[self.config.context_vectors](states, mask, self.config.n_codes)
        else:
            vectors = code_attention(self.code_vectors, states, mask, self.config.code_scale)
            present = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
        if self.config.normalize:
            vectors = unit_length(vectors)
        return ContextCodes(vectors * self.config.score_scale, present)

    def context_sums(self, states: Float64) -> StateSums:
        """Return the context vectors as sums over tokens; those that do not exist are not among them."""
        config = self.config
        values = of_length_one(states) if config.normalize else states
        if self.code_vectors is None:
            weights = output_sums(config.context_vectors, config.n_codes, len(states))
        else:
            weights = code_sums(as_numpy(self.code_vectors), values, config.code_scale)
        return StateSums(weights, values, config.score_scale, config.normalize)
