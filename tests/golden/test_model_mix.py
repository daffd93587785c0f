"""MixEncoder's scores, from text to number, against loops in float64 over the transformer's outputs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import second_stage
from golden.oracle import Vector, dot, softmax, unit, weighted_sum
from golden.second_stage import (
    CANDIDATES,
    CONTEXTS,
    LAYERS,
    SCALE,
    TOLERANCE,
    all_ways_agree,
    applied,
    hidden,
    mean,
    no_encoder_call_scores,
)
from tiny import CLS, DIM, SEP, word_ids, write_base
from torch import nn

import polyrank
from polyrank.model.architectures.backbone import layers_of
from polyrank.model.architectures.mix import Interaction, MixEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import MixConfig

HEADS = 2
KINDS = {
    "a": MixConfig(),
    "b": MixConfig(layers=(-2, -1)),
    "c": MixConfig(rows=2, layers=(1, 2)),
    "paper": MixConfig(rows=2, residual=False),
    "inputs": MixConfig(rows=1, strategy="inputs"),
    "inputs 3": MixConfig(rows=3, strategy="inputs", layers=(-2, -1)),
    "five": MixConfig(rows=5, layers=(-2,)),
    "inputs 2": MixConfig(rows=2, strategy="inputs", residual=False),
    "three": MixConfig(rows=3, residual=False),
    "without E": MixConfig(rows=2, layers=(1, 2), residual=False, without="E"),
    "without H": MixConfig(rows=2, layers=(1, 2), residual=False, without="H"),
    "a without E": MixConfig(without="E"),
    "a without H": MixConfig(strategy="inputs", without="H"),
}


def made(directory: Path, block: MixConfig, **runner: Any) -> VectorRanker:
    ranker = second_stage.made(directory, "mix", block, **runner)
    if not runner:
        with torch.no_grad():  # else the interaction layers are the transformer's
            for parameter in ranker.encoder.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    return ranker


@pytest.fixture(scope="module", params=KINDS)
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    return made(tmp_path_factory.mktemp("mix"), KINDS[request.param])


def mixer(ranker: VectorRanker) -> MixEncoder:
    assert isinstance(ranker.encoder, MixEncoder)
    return ranker.encoder


def plus(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def normed(norm: Any, vector: Vector) -> Vector:
    middle = sum(vector) / len(vector)
    spread = math.sqrt(sum((x - middle) ** 2 for x in vector) / len(vector) + norm.eps)
    scaled = [(x - middle) / spread for x in vector]
    return [w * x + b for w, x, b in zip(norm.weight.tolist(), scaled, norm.bias.tolist(), strict=True)]


def fed(layer: Interaction, vector: Vector) -> Vector:
    inner = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in applied(layer.up, vector)]
    return normed(layer.last_norm, plus(applied(layer.down, inner), vector))


def attended(query: Vector, keys: list[Vector], values: list[Vector]) -> Vector:
    """All heads, side by side."""
    size, found = len(query) // HEADS, list[float]()
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        weights = softmax([dot(query[part], key[part]) / math.sqrt(size) for key in keys])
        found += weighted_sum(weights, [value[part] for value in values])
    return found


def rows_of(encoder: MixEncoder, text: str) -> list[Vector]:
    learnt = encoder.rows.detach().double().tolist()
    ids = [CLS, *word_ids(text), SEP]
    block = encoder.config.block(MixConfig)
    if block.strategy == "codes":
        states = hidden(encoder.candidate, ids, None)
        return [weighted_sum(softmax([dot(code, h) for h in states]), states) for code in learnt]
    transformer = encoder.candidate.transformer
    with torch.inference_mode():
        words = transformer.get_input_embeddings()(torch.tensor([ids[1:]]))
        both = torch.cat([encoder.rows[None], words], dim=1)
        states = transformer(inputs_embeds=both).last_hidden_state[0].double().tolist()
    return states[: len(learnt)]


def loops(encoder: MixEncoder, context: str, candidate: str) -> float:
    """The score of one pair, by the equations."""
    block = encoder.config.block(MixConfig)
    ids = [CLS, *word_ids(context), SEP]
    rows = rows_of(encoder, candidate)
    whole, begun = mean(hidden(encoder.context, ids, None)), mean(rows)
    first = dot(unit(whole), unit(begun))
    found = [0.0] * DIM
    for number, layer in zip(block.layers, encoder.interactions, strict=True):
        assert isinstance(layer, Interaction)
        place = number - 1 if number > 0 else LAYERS + number
        own = encoder.context.transformer.encoder.layer[place].attention.self
        entering = hidden(encoder.context, ids, place)
        keys, values = ([applied(each, h) for h in entering] for each in (own.key, own.value))
        middle = mean(rows)
        own_keys, own_values = ([applied(each, row) for row in rows] for each in (layer.key, layer.value))
        new = []
        for row in rows:
            joined = attended(applied(layer.query, row), [*keys, *own_keys], [*values, *own_values])
            new.append(fed(layer, normed(layer.norm, plus(applied(layer.output, joined), row))))
        read = applied(layer.output, attended(applied(layer.last_query, middle), keys, values))
        gates = [1 / (1 + math.exp(-x)) for x in applied(encoder.gate, [*middle, *read, *found])]
        blended = [g * a + (1 - g) * h for g, a, h in zip(gates, read, found, strict=True)]
        found = fed(layer, normed(layer.norm, blended))
        rows = new
    compared = {None: (mean(rows), found), "E": (begun, found), "H": (mean(rows), whole)}[block.without]
    score = dot(unit(compared[0]), unit(compared[1]))
    return SCALE * (score + first if block.residual else score)


@pytest.fixture(scope="module")
def expected(ranker: VectorRanker) -> np.ndarray:
    return np.array([[loops(mixer(ranker), text, each) for each in CANDIDATES] for text in CONTEXTS])


def test_all_ways_to_a_score_agree_with_the_loops(ranker: VectorRanker, expected: np.ndarray) -> None:
    all_ways_agree(ranker, CONTEXTS, CANDIDATES, expected)


def test_scoring_stored_rows_makes_no_encoder_call(ranker: VectorRanker, monkeypatch: pytest.MonkeyPatch) -> None:
    no_encoder_call_scores(ranker, CONTEXTS, CANDIDATES, monkeypatch)


def test_a_checkpoint_keeps_it(ranker: VectorRanker, tmp_path: Path) -> None:
    block = ranker.config.block(MixConfig)
    assert (ranker.late_rows.dim, ranker.late_rows.count) == (DIM, block.rows)
    raw = ranker.config.to_json()
    assert ModelConfig.from_json({**raw, "mix": {**raw["mix"], "layers": list(raw["mix"]["layers"])}}) == ranker.config
    fresh = made(tmp_path, block)
    fresh.save(tmp_path / "saved")
    again = polyrank.load(tmp_path / "saved")
    assert again.fingerprint == polyrank.load(tmp_path / "saved").fingerprint
    assert len(again.rank(CONTEXTS[0], CANDIDATES)) == len(CANDIDATES)


def test_it_begins_with_the_transformers_own_layers(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 7)
    config = ModelConfig(architecture="mix", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    encoder = polyrank.from_base(str(base), config).encoder
    assert isinstance(encoder, MixEncoder)
    [own], layer = encoder.interactions, encoder.context.transformer.encoder.layer[-1]
    assert torch.equal(own.get_submodule("last_query").weight, layer.attention.self.query.weight)
    assert torch.equal(own.get_submodule("last_norm").weight, layer.output.LayerNorm.weight)


def test_one_learnt_input_that_is_the_first_tokens_gives_its_output(tmp_path: Path) -> None:
    ranker = made(tmp_path, KINDS["inputs"])
    encoder, ids = mixer(ranker), [CLS, *word_ids("w4 w5"), SEP]
    with torch.no_grad():
        encoder.rows.copy_(encoder.candidate.transformer.get_input_embeddings().weight[CLS])
    kept = ranker.represent_candidates([ids])
    np.testing.assert_allclose(kept.late[0], hidden(encoder.candidate, ids, None)[0], atol=1e-5)


@pytest.mark.slow
def test_openvino_gives_what_torch_gives(tmp_path: Path) -> None:
    for name in ("c", "inputs 3", "without E", "without H"):
        both = [made(tmp_path, KINDS[name], backend=backend) for backend in ("torch", "openvino")]
        assert both[1].backend == "openvino"
        for text in CONTEXTS:
            ours, theirs = (dict(each.rank(text, CANDIDATES)) for each in both)
            assert ours == pytest.approx(theirs, abs=TOLERANCE)


@pytest.mark.parametrize(("block", "message"), [
    ({"rows": 0}, "mix.rows"), ({"layers": []}, "mix.layers"), ({"layers": [0]}, "mix.layers"),
    ({"strategy": "other"}, "mix.strategy"), ({"without": "e"}, "mix.without is 'e', not one of E, H or null"),
    ({"more": 1}, "unknown field mix.more"),
])  # fmt: skip
def test_a_block_that_makes_no_sense_is_refused(block: dict[str, Any], message: str) -> None:
    raw = ModelConfig(architecture="mix", base_name="", own=MixConfig()).to_json()
    with pytest.raises(CheckpointInvalid, match=message):
        ModelConfig.from_json({**raw, "mix": {**raw["mix"], **block}})


def test_layers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    for layers in ((3,), (-3,), (2, 1)):
        with pytest.raises(CheckpointInvalid, match=r"layers are 1 to 2, or -2 to -1; .* must be some, ascending"):
            made(tmp_path, MixConfig(layers=layers))


def test_a_family_without_berts_layers_is_refused(tmp_path: Path) -> None:
    class Other(nn.Module):
        config = type("Config", (), {"model_type": "other"})

    ranker = made(tmp_path, MixConfig())
    backbone = mixer(ranker).context
    backbone.transformer = Other()
    with pytest.raises(CheckpointInvalid, match="mix reads keys and values of BERT's"):
        layers_of(backbone, "mix")
