"""Checkpoints: written, read and refused; adapters among them."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import SEP, write_base, write_checkpoint
from tiny_training import run, settings, write_examples
from torch import Tensor, nn

import polyrank
from polyrank.model.checkpoint.read import merge
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.text.assembly import Conversation, Truncation, Turn

BASE_SEED = 5
KINDS: dict[str, dict[str, Any]] = {
    "bi": {"architecture": "bi", "reduction": "mean", "normalize": True},
    **{
        f"poly {kind}": {"architecture": "poly", "context_vectors": kind, "n_codes": 5, "score_scale": 2.0}
        for kind in ("codes", "first", "last", "last+first")
    },
    "cross": {"architecture": "cross"},
    "residual": {"architecture": "cross", "residual": True, "n_codes": 5, "reduction": "mean"},
}
CONTEXT: list[str | Turn] = ["w1 w2", Turn("w3 w4 w5", "user")]
REPLIES = ["w6", "w7 w8 w9", "w3 w4 w5", "w6", "w10 w11 w12 w13"]


def made(base: Path, **fields: Any) -> Any:
    torch.manual_seed(1)
    return polyrank.from_base(
        str(base), ModelConfig(base_name="", **{"max_context_tokens": 40, "max_candidate_tokens": 16, **fields})
    )


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weights", ["base", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(base: Path, tmp_path: Path, kind: str, weights: str, shared: bool) -> None:
    ranker = made(base, **KINDS[kind], weights=weights, shared_encoder=shared)
    ranker.save(tmp_path / "deep" / "one")
    loaded = polyrank.load(tmp_path / "deep" / "one")
    loaded.save(tmp_path / "two")
    again = polyrank.load(str(tmp_path / "two"))
    for other in (loaded, again):
        assert type(other) is type(ranker)
        assert other.architecture == KINDS[kind]["architecture"]
        assert other.config == ranker.config
        assert other.fingerprint == ranker.fingerprint
        assert other.rank(CONTEXT, REPLIES, persona=["w30"]) == ranker.rank(CONTEXT, REPLIES, persona=["w30"])
    assert loaded.name == "one"
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / d).iterdir()} for d in ("deep/one", "two"))
    assert one == two


@pytest.mark.parametrize("kind", ["bi", "poly codes", "cross", "residual"])
def test_base_weights_are_a_reference(base: Path, tmp_path: Path, kind: str) -> None:
    """What the checkpoint holds itself: codes or head, no transformer."""
    made(base, **KINDS[kind], weights="base").save(tmp_path / "c")
    file = tmp_path / "c" / "model.safetensors"
    own = set(load_file(file)) if file.exists() else set()
    held = {"poly codes": {"code_vectors"}, "cross": {"head.weight", "head.bias"}}
    held["residual"] = held["cross"] | {"poly.code_vectors"}
    assert own == held.get(kind, set())


def test_a_shared_transformer_is_stored_once(base: Path, tmp_path: Path) -> None:
    sizes = {}
    for shared in (False, True):
        made(base, **KINDS["bi"], shared_encoder=shared).save(tmp_path / str(shared))
        sizes[shared] = len(load_file(tmp_path / str(shared) / "model.safetensors"))
    assert sizes[False] == 2 * sizes[True]


def test_a_full_checkpoint_needs_no_base(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "poly", 0, architecture="poly")
    expected = polyrank.load(checkpoint).rank("w1", REPLIES)
    shutil.rmtree(tmp_path / "poly-base")
    assert polyrank.load(checkpoint.rename(tmp_path / "moved")).rank("w1", REPLIES) == expected


def test_towers_tuned_apart_stay_apart(base: Path, tmp_path: Path) -> None:
    ranker = made(base, **KINDS["poly codes"])
    with torch.no_grad():
        for parameter in ranker.encoder.candidate.parameters():
            parameter *= 1.1
    expected = ranker.rank(CONTEXT, REPLIES)
    ranker.save(tmp_path / "c")
    loaded = polyrank.load(tmp_path / "c")
    assert loaded.rank(CONTEXT, REPLIES) == expected
    one, other = loaded.encoder.context.state_dict(), loaded.encoder.candidate.state_dict()
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def checkpoint(base: Path, tmp_path: Path) -> Path:
    made(base, **KINDS["poly codes"]).save(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def set_field(name: str, value: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        rewrite(path / "polyrank.json", lambda raw: raw.update({name: value}))

    change.__name__ = name  # the name of the test's case
    return change


def nudge_a_code(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    weights["code_vectors"][0, 0] += 1e-3
    save_file(weights, path / "model.safetensors")


def add_a_word(path: Path) -> None:
    rewrite(path / "tokenizer.json", lambda raw: raw["model"]["vocab"].update(new=44))


def change_activation(path: Path) -> None:
    rewrite(path / "backbone.json", lambda raw: raw.update(hidden_act="relu"))


@pytest.mark.parametrize("change", [
    set_field("code_scale", 2.0), set_field("normalize", True), set_field("reduction", "mean"),
    set_field("max_context_tokens", 39), set_field("assembly", {"role_markers": {"user": "w1"}}),
    nudge_a_code, add_a_word, change_activation,
])  # fmt: skip
def test_the_fingerprint_changes_with(checkpoint: Path, change: Callable[[Path], None]) -> None:
    before = polyrank.load(checkpoint).fingerprint
    change(checkpoint)
    assert polyrank.load(checkpoint).fingerprint != before


def rename_base(path: Path) -> None:
    rewrite(path / "polyrank.json", lambda raw: raw["base"].update(name="another name"))


def note_origin(path: Path) -> None:
    rewrite(path / "backbone.json", lambda raw: raw.update(_name_or_path="/somewhere/else"))


def reorder(path: Path) -> None:
    raw = json.loads((path / "polyrank.json").read_text())
    (path / "polyrank.json").write_text(json.dumps(dict(reversed(raw.items())), indent=7))


@pytest.mark.parametrize(
    "change", [set_field("training", {"epochs": 3, "loss": [0.1]}), rename_base, note_origin, reorder]
)
def test_the_fingerprint_does_not_change_with(checkpoint: Path, change: Callable[[Path], None]) -> None:
    before = polyrank.load(checkpoint)
    change(checkpoint)
    after = polyrank.load(checkpoint.rename(checkpoint.with_name("renamed")))
    assert after.name != before.name
    assert after.fingerprint == before.fingerprint


def test_the_fingerprint_covers_the_bases_weights(tmp_path: Path) -> None:
    """Also where the checkpoint only refers to them."""
    seen = set()
    for seed in range(2):
        write_checkpoint(tmp_path, str(seed), seed, architecture="bi", weights="base")
        seen.add(polyrank.load(tmp_path / str(seed)).fingerprint)
    assert len(seen) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_stored_in_half_precision(base: Path, tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    """They are computed with in float32."""
    ranker = made(base, **KINDS[kind])
    ranker.save(tmp_path / "c")
    file = tmp_path / "c" / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)
    loaded = polyrank.load(tmp_path / "c")
    assert {parameter.dtype for parameter in loaded.encoder.parameters()} == {torch.float32}
    with torch.no_grad():
        for parameter in ranker.encoder.parameters():
            parameter.copy_(parameter.to(dtype))
    assert loaded.rank(CONTEXT, REPLIES) == ranker.rank(CONTEXT, REPLIES)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_published_names_of_weights(base: Path, tmp_path: Path, prefix: str) -> None:
    """With or without the architecture's prefix, and with heads nobody asked for."""
    shutil.copytree(base, tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    weights = {prefix + name: tensor for name, tensor in load_file(file).items()}
    save_file(weights | {"cls.predictions.bias": torch.zeros(44), f"{prefix}pooler.dense.bias": torch.ones(16)}, file)
    assert polyrank.load(tmp_path / "base").rank("w1", REPLIES) == polyrank.load(base).rank("w1", REPLIES)


@pytest.mark.parametrize(("cls_token", "reduction"), [(True, "first"), (False, "mean"), (None, "mean")])
def test_a_plain_base_is_a_zero_shot_bi_encoder(base: Path, tmp_path, cls_token: bool | None, reduction: str) -> None:
    shutil.copytree(base, tmp_path / "base")
    if cls_token is not None:
        (tmp_path / "base" / "1_Pooling").mkdir()
        (tmp_path / "base" / "1_Pooling" / "config.json").write_text(
            json.dumps({"pooling_mode_cls_token": cls_token, "pooling_mode_mean_tokens": not cls_token})
        )
    ranker = polyrank.load(tmp_path / "base")
    config = ranker.config
    assert (ranker.architecture, config.reduction, config.normalize) == ("bi", reduction, True)
    assert (config.max_context_tokens, config.max_candidate_tokens) == (64, 64), "as many as it has positions"
    assert dict(ranker.rank("w1 w2", ["w1 w2"]))[0] == pytest.approx(1.0, abs=1e-6), "cosines"


def test_a_plain_bases_turns_are_separated_as_its_sequences_end(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base")
    tokenizer = tmp_path / "base" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("[SEP]", "</s>"))
    ranker = polyrank.load(tmp_path / "base")
    assert ranker.tokenize_context(Conversation.of(["w1", "w2"], ["w3"]))[0] == [2, 7, SEP, 5, SEP, 6, SEP]


def test_saving_over_another_checkpoint_replaces_it(base: Path, tmp_path: Path) -> None:
    """Also its weights, where the new one has none of its own."""
    made(base, **KINDS["cross"]).save(tmp_path / "c")
    ranker = made(base, **KINDS["bi"], weights="base")
    ranker.save(tmp_path / "c")
    assert polyrank.load(tmp_path / "c").fingerprint == ranker.fingerprint


def test_saving_to_where_it_was_loaded_from(checkpoint: Path) -> None:
    loaded = polyrank.load(checkpoint)
    loaded.save(checkpoint)
    assert polyrank.load(checkpoint).fingerprint == loaded.fingerprint


def test_a_base_is_not_saved_over(base: Path) -> None:
    before = {path: path.read_bytes() for path in base.iterdir()}
    with pytest.raises(InvalidInput, match="holds a base model"):
        polyrank.load(base).save(base)
    assert {path: path.read_bytes() for path in base.iterdir()} == before


@pytest.mark.slow
def test_threads_share_a_model(base: Path) -> None:
    rankers = [made(base, **KINDS[kind]) for kind in ("poly codes", "cross", "residual")]
    contexts = [[f"w{n % 40} w{n % 13}", f"w{n % 7}"] for n in range(64)]
    for ranker in rankers:
        expected = [ranker.rank(context, REPLIES) for context in contexts]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda context, r=ranker: r.rank(context, REPLIES), contexts)) == expected


@pytest.mark.parametrize("kind", ["bi", "poly codes", "cross", "residual"])
def test_rank(base: Path, kind: str) -> None:
    ranker = made(base, **KINDS[kind])
    ranked = ranker.rank(CONTEXT, REPLIES)
    assert sorted(at for at, _ in ranked) == list(range(5))
    scores = dict(ranked)
    assert scores[0] == pytest.approx(scores[3], abs=1e-5), "equal texts"
    assert ranked == sorted(ranked, key=lambda pair: (-pair[1], pair[0]))
    assert ranker.rank(CONTEXT, REPLIES, top_k=2) == ranked[:2]
    assert ranker.rank(CONTEXT, REPLIES, top_k=99) == ranked
    assert ranker.rank(CONTEXT, []) == []
    assert ranker.rank(CONTEXT, REPLIES, persona=["w20 w21"]) != ranked
    with pytest.raises(InvalidInput, match="context is empty"):
        ranker.rank(["", " "], REPLIES)


def test_encoding_nothing(base: Path) -> None:
    late = made(base, **KINDS["poly first"])
    assert late.encode_contexts([]) == []
    assert late.encode_candidates([]).shape == (0, late.dim)
    for cross in (made(base, **KINDS["cross"]), made(base, **KINDS["residual"])):
        pairs, _ = cross.tokenize_pairs(Conversation.of("w1"), [])
        assert cross.score_pairs(pairs).shape == (0,)


def test_pairs_tell_what_of_them_is_not_read(base: Path) -> None:
    _, cut = made(base, **KINDS["cross"]).tokenize_pairs(Conversation.of("w1"), ["w2 " * 99, "w3"])
    assert cut == Truncation(candidates=1)


def test_short_contexts_have_fewer_vectors(base: Path) -> None:
    ranker = made(base, **KINDS["poly last"])
    short, long = ranker.encode_contexts([[2, 5, SEP], [2, *range(5, 15), SEP]])
    assert (short.shape, long.shape) == ((3, 16), (5, 16))


def test_a_device_that_is_not_there_is_named(base: Path) -> None:
    with pytest.raises(InvalidInput, match="cuda:77"):
        polyrank.load(base, device="cuda:77")


NAME = "0.inner"


def net() -> nn.Module:
    """A map of 4 to 3 dimensions named `0.inner.weight`, and one of 3 to 3."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Module(), nn.Linear(3, 3))
    module[0].inner = nn.Linear(4, 3)
    return module


def pair(rank: int = 2, inputs: int = 4, outputs: int = 3, name: str = NAME) -> dict[str, Tensor]:
    return {f"{name}.lora_A": torch.randn(rank, inputs), f"{name}.lora_B": torch.randn(outputs, rank)}


def test_the_product_is_added_to_the_weight_of_its_name_alone() -> None:
    module, adapter = net(), pair()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    merge(module, adapter)
    low, high = adapter.values()
    by_hand = [
        [before["0.inner.weight"][o, i] + sum(high[o, r] * low[r, i] for r in range(2)) for i in range(4)]
        for o in range(3)
    ]
    after = module.state_dict()
    torch.testing.assert_close(after.pop("0.inner.weight"), torch.tensor(by_hand))
    assert all(torch.equal(each, before[name]) for name, each in after.items())


def test_half_precision_pairs_are_multiplied_in_single_precision() -> None:
    one, other = net(), net()
    halves = {name: each.half() for name, each in pair().items()}
    merge(one, halves)
    merge(other, {name: each.float() for name, each in halves.items()})
    assert torch.equal(one[0].inner.weight, other[0].inner.weight)
    assert one[0].inner.weight.dtype == torch.float32


SQUARE = {"1.lora_A": torch.ones(3), "1.lora_B": torch.ones(3)}


@pytest.mark.parametrize(
    "adapter",
    [
        {f"{NAME}.lora_A": torch.ones(2, 4)},
        {f"{NAME}.lora_B": torch.ones(3, 2)},
        pair(name="0.outer"),
        pair(name="0.inner.weight"),
        pair(inputs=5),
        pair(outputs=4),
        {f"{NAME}.lora_A": torch.ones(2, 4), f"{NAME}.lora_B": torch.ones(3, 1)},
        {f"{NAME}.lora_A": torch.ones(4, 2), f"{NAME}.lora_B": torch.ones(2, 3)},
        SQUARE,
        {"1.lora_A": torch.tensor(1.0), "1.lora_B": torch.tensor(1.0)},
        {"1.lora_A": torch.ones(1, 2, 3), "1.lora_B": torch.ones(3, 2, 1)},
    ],
    ids=[
        "no B", "no A", "no such map", "a parameter's name", "too wide", "too tall", "ranks differ", "turned",
        "vectors", "scalars", "three axes",
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(adapter: dict[str, Tensor]) -> None:
    module = net()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    with pytest.raises(CheckpointInvalid, match="the adapter of "):
        merge(module, adapter)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of adapters for a bi-encoder, its base beside it."""
    parent = tmp_path_factory.mktemp("adapter")
    base = write_base(parent / "base", 0)
    run(settings(base, lora_rank=2, steps=4), write_examples(parent / "data.jsonl"), parent / "output")
    return parent / "output"


def copied(trained: Path, parent: Path, changed: dict[str, Tensor]) -> Path:
    copy = parent / "copy"
    copy.mkdir()
    for name in ("polyrank.json", "backbone.json", "tokenizer.json"):
        (copy / name).write_bytes((trained / name).read_bytes())
    save_file({**load_file(trained / "model.safetensors"), **changed}, copy / "model.safetensors")
    return copy


@pytest.mark.slow
def test_a_checkpoint_of_another_shape_or_half_a_pair_is_refused(trained: Path, tmp_path: Path) -> None:
    tensors = load_file(trained / "model.safetensors")
    name = min(each for each in tensors if each.endswith(".lora_A"))
    wide = copied(trained, tmp_path, {name: torch.zeros(2, 17)})
    with pytest.raises(CheckpointInvalid, match="does not fit a weight of shape"):
        polyrank.load(wide)
    del tensors[name]
    save_file(tensors, wide / "model.safetensors")
    with pytest.raises(CheckpointInvalid, match="half a pair"):
        polyrank.load(wide)


def test_a_checkpoint_that_lost_its_adapters_is_not_taken_for_its_base(trained: Path, tmp_path: Path) -> None:
    copy = copied(trained, tmp_path, {})
    assert polyrank.load(copy).fingerprint == polyrank.load(trained).fingerprint
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointInvalid, match=r"model\.safetensors is missing"):
        polyrank.load(copy)
