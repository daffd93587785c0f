"""Uni-Encoder: a context is read once, and every candidate reads it (Song et al. 2023, arXiv 2106.01263).

One sequence has the context, then the candidates, each with positions right behind the context's, as if it were alone.
A mask says which places see which: a candidate's see the context and the candidate. With the mask "one-way" those of
the context see the context alone. So each layer's keys and values of the context are computed once, serve any
candidates, and can be kept. With "arrow", the paper's, they see all candidates, too.

Axes: B contexts, n candidates of each, N = B n, T tokens of a context, K of a candidate, L layers, H heads, d = D / H.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyrank.model.architectures.backbone import Backbone, TensorBatch, layers_of
from polyrank.model.architectures.batching import behind, length_batches, pad
from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.architectures.vector import masked_mean
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.registry import UniConfig
from polyrank.model.text.sequences import Pairs

# Families whose layers are BERT's; others with its names have norms elsewhere, or attention of another kind.
_FAMILIES = ("bert", "camembert", "electra", "roberta", "xlm-roberta")


class BesideTensors(NamedTuple):
    """A BesideBatch as torch takes it, on one device."""

    ids: Tensor
    mask: Tensor
    places: Tensor
    memory: Tensor
    memory_mask: Tensor


class UniEncoder(PairEncoder):
    """`score = W r`: r is the mean of the candidate's last states, or the first of them (D); W maps it to a scalar.

    A back-end runs two parts: `memory`, once for a context, and `candidate_states`, for candidates beside it.
    """

    def __init__(self, config: ModelConfig, encoder: Backbone, poly: PolyEncoder | None = None) -> None:
        super().__init__(config, encoder, poly)
        if self.head is None:
            raise CheckpointInvalid("polyrank.json: a published head is for a cross, not for a uni")
        family = encoder.transformer.config.model_type
        if family not in _FAMILIES:
            raise CheckpointInvalid(f"a uni runs the layers of {', '.join(_FAMILIES)}, which {family} does not have")
        self._options = config.block(UniConfig)

    def batches(self, pairs: Pairs, budget: int) -> list[list[int]]:
        """Group pairs with their contexts, of which each is read once in a group.

        With the mask "arrow" all candidates of a context are in one group, whatever the budget.
        """
        groups, costs = list[list[int]](), list[int]()
        for owner, positions in pairs.by_context().items():
            tokens = len(pairs.contexts[owner])
            longest = max(1, *(len(pairs.candidates[position]) for position in positions))
            room = len(positions) if self.sees_candidates else max(1, (budget - tokens) // longest)
            for start in range(0, len(positions), room):
                groups.append(positions[start : start + room])
                costs.append(tokens + longest * len(groups[-1]))
        return [[at for group in some for at in groups[group]] for some in length_batches(costs, budget)]

    @property
    def _layers(self) -> Any:
        """The transformer's layers, looked up each time: a copy of this encoder may have another transformer."""
        return layers_of(self.encoder, "a uni")

    @property
    def sees_candidates(self) -> bool:
        """Whether a context sees the candidates that are sent with it, so that each score depends on all of them."""
        return self._options.mask == "arrow"

    @property
    def memory_width(self) -> int:
        """W, how many numbers `memory` gives for a token."""
        return self.encoder.dim * (1 if self.sees_candidates else 2 * len(self._layers))

    def own_scores(self, pairs: Pairs, left_out: Sequence[Sequence[int]] = ()) -> Tensor:
        """Return the score of each pair; `left_out` of each context is of the pair alone, which then reads it anew."""
        if left_out:
            owners = [*range(len(pairs.owners))]
            pairs = Pairs([pairs.contexts[owner] for owner in pairs.owners], pairs.candidates, owners, pairs.prefix)
        device, pad_id = next(self.parameters()).device, self.encoder.pad_id
        batch, by_context = pad(pairs.contexts, pad_id), pairs.by_context()
        for row, places in enumerate(left_out):
            batch.mask[row, list(places)] = False
        contexts = TensorBatch.of(batch, device)
        count = max(map(len, by_context.values()))
        ids, begins, rows = list[list[int]](), list[int](), list[tuple[int, int]]()
        for owner, context in enumerate(pairs.contexts):
            few = by_context.get(owner, [])
            rows += ((position, len(ids) + at) for at, position in enumerate(few))
            ids += [pairs.candidates[position][pairs.prefix :] for position in few] + [[]] * (count - len(few))
            begins += [len(context)] * count
        own, mask, own_places = (torch.from_numpy(field).to(device) for field in behind(ids, begins, pad_id))
        states = self.candidate_states(BesideTensors(own, mask, own_places, self.memory(contexts), contexts.mask))
        scores = self.head_scores(states, mask)
        return scores[torch.tensor([row for _, row in sorted(rows)], device=device)]

    def head_scores(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the score of each candidate, (N,) float32, from its last states (N, K, D) and their mask (N, K)."""
        assert self.head is not None, "it has its own"
        state = states[:, 0].float() if self._options.state == "first" else masked_mean(states, mask)
        scores: Tensor = self.head(state)
        return scores[:, 0]

    def memory(self, batch: TensorBatch) -> Tensor:
        """Return what candidates read of contexts, (B, T, W).

        One-way: keys and values of each layer, side by side. Arrow: what enters the first layer, because the rest
        depends on the candidates.
        """
        with self.encoder.autocast():
            places = torch.arange(batch.ids.shape[1], device=batch.ids.device).expand_as(batch.ids)
            states = self.encoder.embedded(batch.ids, places, batch.segments)
            if self.sees_candidates:
                return states
            pieces: list[Tensor] = []
            for number, layer in enumerate(self._layers):
                own = layer.attention.self
                key, value = own.key(states), own.value(states)
                pieces += [key, value]
                if number + 1 < len(self._layers):
                    states = self._checked(layer, self._context_layer, layer, states, key, value, batch.mask)
            return torch.cat(pieces, dim=-1)

    def candidate_states(self, batch: BesideTensors) -> Tensor:
        """Return the last states of candidates that read their contexts, (N, K, D)."""
        ids, mask, places, memory, memory_mask = batch
        with self.encoder.autocast():
            states = self.encoder.embedded(ids, places, torch.ones_like(ids))
            if self.sees_candidates:
                return self._states_of_both(states, mask, memory.to(states.dtype), memory_mask)
            pieces = torch.split(memory, self.encoder.dim, dim=-1)
            for number, layer in enumerate(self._layers):
                key, value = pieces[2 * number : 2 * number + 2]
                states = self._checked(layer, self._candidate_layer, layer, states, mask, key, value, memory_mask)
            return states

    def _states_of_both(self, states: Tensor, mask: Tensor, contexts: Tensor, context_mask: Tensor) -> Tensor:
        """Run all layers over candidates (N, K, D) and contexts (B, T, D) that see each other."""
        for layer in self._layers:
            own, before = layer.attention.self, contexts
            key, value = own.key(contexts), own.value(contexts)
            beside_it = [_of_contexts(each, contexts) for each in (own.key(states), own.value(states))]
            keys, values = (torch.cat(both, dim=1) for both in zip((key, value), beside_it, strict=True))
            both_mask = torch.cat([context_mask, _of_contexts(mask[..., None], contexts)[..., 0]], dim=1)
            contexts = self._checked(layer, self._context_layer, layer, before, keys, values, both_mask)
            states = self._checked(layer, self._candidate_layer, layer, states, mask, key, value, context_mask)
        return states

    def _checked(self, layer: Any, run: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Run a layer, and where training asks for that keep only what enters it."""
        if self.training and getattr(layer, "gradient_checkpointing", False):
            states: Tensor = checkpoint(run, *inputs, use_reentrant=False)
            return states
        return run(*inputs)

    def _context_layer(self, layer: Any, states: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Run a layer over contexts (B, T, D) that see the tokens of keys and values (B, S, D); mask (B, S)."""
        query, k, v = (self._by_head(each) for each in (layer.attention.self.query(states), key, value))
        logits = (query @ k.transpose(-2, -1)).masked_fill(~mask[:, None, None], float("-inf"))
        return _fed(layer, states, self._weights(layer, logits) @ v)

    def _candidate_layer(
        self, layer: Any, states: Tensor, mask: Tensor, key: Tensor, value: Tensor, memory_mask: Tensor
    ) -> Tensor:
        """Run a layer over candidates (N, K, D) that see themselves, mask (N, K), and keys and values (B, T, D).

        All candidates of a context read it in one product.
        """
        own, tokens = layer.attention.self, key.shape[1]
        maps = own.query(states), own.key(states), own.value(states)
        query, k, v = (self._by_head(_of_contexts(each, key)) for each in maps)  # (B, H, n K, d)
        context_k, context_v = (self._by_head(each.to(query.dtype)) for each in (key, value))
        each_query, each_k, each_v = (self._by_candidate(each, states) for each in (query, k, v))  # (B, H, n, K, d)
        to_own = each_query @ each_k.transpose(-2, -1)
        to_own = to_own.masked_fill(~mask.reshape(key.shape[0], 1, -1, 1, mask.shape[1]), float("-inf"))
        to_context = (query @ context_k.transpose(-2, -1)).masked_fill(~memory_mask[:, None, None], float("-inf"))
        apart = self._by_candidate(to_context, states)  # (B, H, n, K, T)
        weights = self._weights(layer, torch.cat([apart, to_own], dim=-1))
        of_context = weights[..., :tokens].flatten(2, 3) @ context_v
        heads = of_context + (weights[..., tokens:] @ each_v).flatten(2, 3)
        return _fed(layer, states, heads)

    def _by_head(self, states: Tensor) -> Tensor:
        """Cut states (B, S, D) into heads, (B, H, S, d)."""
        heads: int = self.encoder.transformer.config.num_attention_heads
        return states.reshape(*states.shape[:-1], heads, -1).transpose(1, 2)

    @staticmethod
    def _by_candidate(states: Tensor, like: Tensor) -> Tensor:
        """Cut (B, H, n K, …) into candidates of K tokens as `like`, (N, K, D) has, (B, H, n, K, …)."""
        return states.reshape(*states.shape[:2], -1, like.shape[1], states.shape[-1])

    @staticmethod
    def _weights(layer: Any, logits: Tensor) -> Tensor:
        """Return the softmax over the last axis of products of queries and keys, with dropout in training."""
        own = layer.attention.self
        scaled = logits.float() * own.attention_head_size**-0.5
        weights: Tensor = own.dropout(scaled.softmax(dim=-1).to(logits.dtype))
        return weights


def _of_contexts(states: Tensor, contexts: Tensor) -> Tensor:
    """Put the candidates (N, K, …) of each context behind each other, (B, n K, …)."""
    return states.reshape(contexts.shape[0], -1, states.shape[-1])


def _fed(layer: Any, states: Tensor, heads: Tensor) -> Tensor:
    """Return a layer's outputs from what entered it, and what its heads found, (B, H, S, d), of the same tokens."""
    values = heads.transpose(1, 2).reshape(states.shape)
    attended = layer.attention.output(values, states)
    outputs: Tensor = layer.output(layer.intermediate(attended), attended)
    return outputs
