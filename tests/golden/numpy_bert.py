"""A BERT read a second time: NumPy in float64, from the weights of a checkpoint's file and from nothing else.

Source: Devlin et al. 2019 (arXiv 1810.04805) and Vaswani et al. 2017 (arXiv 1706.03762), with the names of tensors as
published models have them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float64]
_HEADS = 2
_ERF = np.vectorize(math.erf)


class Weights:
    """The tensors of a checkpoint, in float64."""

    def __init__(self, checkpoint: Path) -> None:
        self._tensors = {
            name: each.astype(np.float64) for name, each in load_file(checkpoint / "model.safetensors").items()
        }

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def states(self, tower: str, ids: Sequence[int], segment: int = 0, visible: int | None = None) -> Array:
        """The last outputs (T, D) of one of the transformers over one sequence; a shared one is the context's.

        visible: nobody attends to tokens behind so many; None: to all.
        """
        if not any(name.startswith(f"{tower}.") for name in self._tensors):
            tower = "context"
        sees = np.arange(len(ids)) < (len(ids) if visible is None else visible)
        return self.seeing(tower, ids, [*range(len(ids))], [segment] * len(ids), np.tile(sees, (len(ids), 1)))

    def seeing(
        self, tower: str, ids: Sequence[int], places: Sequence[int], segments: Sequence[int], sees: NDArray[np.bool_]
    ) -> Array:
        """The last outputs (T, D) of tokens at these places, of which each attends to those that it sees, (T, T)."""
        at = f"{tower}.transformer"
        rows = [
            self[f"{at}.embeddings.word_embeddings.weight"][[*ids]],
            self[f"{at}.embeddings.position_embeddings.weight"][[*places]],
            self[f"{at}.embeddings.token_type_embeddings.weight"][[*segments]],
        ]
        x = self._norm(f"{at}.embeddings.LayerNorm", rows[0] + rows[1] + rows[2])
        layer = 0
        while f"{at}.encoder.layer.{layer}.output.dense.weight" in self:
            x = self._layer(f"{at}.encoder.layer.{layer}", x, sees)
            layer += 1
        return x

    def _layer(self, at: str, x: Array, sees: NDArray[np.bool_]) -> Array:
        q, k, v = (self._linear(f"{at}.attention.self.{name}", x) for name in ("query", "key", "value"))
        size = x.shape[1] // _HEADS
        found = np.empty_like(x)
        for head in range(_HEADS):
            own = slice(head * size, (head + 1) * size)
            logits = np.where(sees, q[:, own] @ k[:, own].T / math.sqrt(size), -np.inf)
            found[:, own] = softmax(logits) @ v[:, own]
        x = self._norm(f"{at}.attention.output.LayerNorm", self._linear(f"{at}.attention.output.dense", found) + x)
        inner = self._linear(f"{at}.intermediate.dense", x)
        inner = inner * 0.5 * (1 + _ERF(inner / math.sqrt(2)))
        return self._norm(f"{at}.output.LayerNorm", self._linear(f"{at}.output.dense", inner) + x)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * self[f"{name}.weight"] + self[f"{name}.bias"]


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def unit(vector: Array) -> Array:
    return vector / math.sqrt(float(vector @ vector))


def code_weights(weights: Weights, config: Any, states: Array) -> list[Array]:
    """How much each context vector takes of each token's output, before lengths (Humeau et al. 4.4, Appendix C)."""
    count, taken = len(states), config.n_codes
    if config.context_vectors == "codes":
        return [softmax(config.code_scale * states @ code) for code in weights["code_vectors"]]
    places = {
        "first": [j for j in range(count) if j < taken],
        "last": [j for j in range(count) if j >= count - taken],
        "last+first": [j for j in range(count) if j == 0 or j >= count - taken],
    }[config.context_vectors]
    return [np.array([1.0 if j == place else 0.0 for j in range(count)]) for place in places]


def reduced_terms(kind: str, m: int, states: Array) -> list[Array]:
    """What each token adds to the reduced vector: their sum is it (Humeau et al. 4.2, and sentence-transformers')."""
    count = len(states)
    if kind == "max":
        best = [max(range(count), key=lambda j, d=d: states[j, d]) for d in range(states.shape[1])]
        return [np.array([states[j, d] if best[d] == j else 0.0 for d in range(states.shape[1])]) for j in range(count)]
    share = {
        "first": lambda j: 1.0 if j == 0 else 0.0,
        "last": lambda j: 1.0 if j == count - 1 else 0.0,
        "mean": lambda _: 1 / count,
        "first-m mean": lambda j: 1 / min(m, count) if j < m else 0.0,
        "all-but-first mean": lambda j: 1 / max(1, count - 1) if j > 0 or count == 1 else 0.0,
        "mean-sqrt-len": lambda _: 1 / math.sqrt(count),
        "weighted-mean": lambda j: (j + 1) / sum(range(1, count + 1)),
    }[kind]
    return [share(j) * states[j] for j in range(count)]
