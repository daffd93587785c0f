"""One-way attention a second time, in float64 and without a cache of keys: two ways to the outputs of one pair.

And from outputs to a score: the Poly-encoder's, as golden.oracle has it, and what the candidate has read.

Outputs are lists of vectors, as golden.oracle takes them.
"""

from copy import deepcopy
from typing import Any

import torch
from golden import oracle
from golden.oracle import Vector
from torch import Tensor

States = tuple[list[Vector], list[Vector]]  # of the context's tokens and of the candidate's


def joint(transformer: Any, context: list[int], candidate: list[int], logit: float, start: int = 0) -> States:
    """One run over both, for a transformer that both sides share.

    Positions count from `start` again where the candidate begins. A context token sees context tokens only; a candidate
    token sees its own side with nothing added to the logits, and the context with `logit` added.
    """
    split, total = len(context), len(context) + len(candidate)
    mask = torch.zeros(1, 1, total, total, dtype=torch.float64)
    mask[:, :, :split, split:] = -torch.inf
    mask[:, :, split:, :split] = logit
    positions = [*range(start, start + split), *range(start, start + len(candidate))]
    with torch.inference_mode():
        states = (
            deepcopy(transformer)
            .double()
            .eval()(
                input_ids=torch.tensor([[*context, *candidate]]),
                attention_mask=mask,
                position_ids=torch.tensor([positions]),
                token_type_ids=torch.zeros(1, total, dtype=torch.long),
            )
        )
    found = states.last_hidden_state[0]
    return found[:split].tolist(), found[split:].tolist()


def by_layers(
    towers: tuple[Any, Any], context: list[int], candidate: list[int], logit: float, start: int = 0
) -> States:
    """Layer by layer through two transformers, every token's attention in every head by itself."""
    one, other = (deepcopy(tower).double().eval() for tower in towers)
    with torch.inference_mode():
        read, reading = _embedded(one, context, start), _embedded(other, candidate, start)
        for layer, its in zip(one.encoder.layer, other.encoder.layer, strict=True):
            of_context = _keys_and_values(layer, read)
            own = _keys_and_values(its, reading)
            reading = _layer(its, reading, [(*pair, logit) for pair in of_context] + [(*pair, 0.0) for pair in own])
            read = _layer(layer, read, [(*pair, 0.0) for pair in of_context])
    return read.tolist(), reading.tolist()


def alone(transformer: Any, ids: list[int], start: int = 0) -> list[Vector]:
    """The outputs of a side that reads nothing but itself."""
    return by_layers((transformer, transformer), ids, ids, 0.0, start)[0]


def score(encoder: Any, unread: list[Vector], outputs: States) -> float:
    """`poly(ctxt, cand) + red(T2(cand | ctxt)) W`: candidate attention as in 4.4, and a correction by what was read.

    encoder: whose codes, head and config count. unread: the candidate's outputs alone. outputs: those of the pair.
    """
    config, (context, read) = encoder.config, outputs
    codes = None if encoder.code_vectors is None else encoder.code_vectors.detach().double().tolist()
    vectors = oracle.context_vectors(
        context, config.context_vectors, config.n_codes, codes, config.code_scale, config.normalize
    )
    embedding = oracle.reduce(unread, config.reduction, config.reduction_m)
    embedding = oracle.unit(embedding) if config.normalize else embedding
    correction = oracle.dot(
        oracle.reduce(read, config.reduction, config.reduction_m), encoder.head.weight[0].double().tolist()
    )
    return oracle.candidate_attention(vectors, embedding, config.score_scale) + correction


def _embedded(transformer: Any, ids: list[int], start: int) -> Tensor:
    embedded = transformer.embeddings(
        input_ids=torch.tensor([ids]),
        position_ids=torch.arange(start, start + len(ids))[None],
        token_type_ids=torch.zeros(1, len(ids), dtype=torch.long),
    )
    if hasattr(transformer, "embeddings_project"):
        embedded = transformer.embeddings_project(embedded)
    states: Tensor = embedded[0]
    return states


def _keys_and_values(layer: Any, states: Tensor) -> list[tuple[Tensor, Tensor]]:
    """One pair a token, (H, D / H) each."""
    maps = layer.attention.self
    heads = maps.num_attention_heads
    return [(maps.key(state).view(heads, -1), maps.value(state).view(heads, -1)) for state in states]


def _layer(layer: Any, states: Tensor, seen: list[tuple[Tensor, Tensor, float]]) -> Tensor:
    """Attn(Q, K, V) of Vaswani et al. 3.2.1 over what is seen, a number added to the logit of each; then the rest."""
    maps = layer.attention.self
    attended = []
    for state in states:
        query = maps.query(state).view(maps.num_attention_heads, -1)
        heads = []
        for head, of_head in enumerate(query):
            logits = [of_head @ key[head] / len(of_head) ** 0.5 + added for key, _, added in seen]
            weights = torch.stack(logits).softmax(dim=0)
            heads.append(sum(weight * value[head] for weight, (_, value, _) in zip(weights, seen, strict=True)))
        attended.append(torch.cat(heads))
    between = layer.attention.output(torch.stack(attended), states)
    found: Tensor = layer.output(layer.intermediate(between), between)
    return found
