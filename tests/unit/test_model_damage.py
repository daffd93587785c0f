"""Damaged, incomplete and foreign checkpoints: one line that names the file, never another type of error."""

import io
import json
import os
import re
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tiny import write_base, write_checkpoint
from unprivileged import bound_by_permissions

import polyrank
from polyrank.model.checkpoint.discovery import read_checkpoint
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, ModelError, ModelNotFound
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.rankers.load import load

GARBAGE = ["", "{", "[]", "3", "null", '"text"', "{}", '{"a": NaN}', "\x00", "[" * 10]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints: `poly` (full) and `light` (codes of its own, base weights by reference)."""
    parent = tmp_path_factory.mktemp("damage")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, shared_encoder=True)
    write_checkpoint(parent, "light", 1, architecture="poly", n_codes=4, weights="base")
    return parent


@pytest.fixture
def poly(sources: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sources / "poly", tmp_path / "poly"))


@pytest.fixture
def light(sources: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sources / "light", tmp_path / "light"))


def refusal(path: Path, kind: type[ModelError] = CheckpointInvalid) -> str:
    with pytest.raises(ModelError) as caught:
        polyrank.load(path)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("lost", ["backbone.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file(poly: Path, lost: str) -> None:
    (poly / lost).unlink()
    assert refusal(poly) == f"{poly}: {lost} is missing"


@pytest.mark.parametrize(
    "hidden",
    ["polyrank.json", "backbone.json", "tokenizer.json", "model.safetensors", "../poly-base/model.safetensors"],
)
def test_a_file_that_may_not_be_read(tmp_path: Path, hidden: str) -> None:
    model = write_checkpoint(tmp_path, "poly", 0, architecture="poly", n_codes=4, weights="base")
    file = (model / hidden).resolve()
    file.chmod(0)
    with bound_by_permissions():
        assert refusal(model) == f"{file} cannot be read: Permission denied"


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["its own weights", "the base's weights", "the transformer's config"])
def test_a_model_whose_files_change_before_its_network_is_read(tmp_path: Path, changed: str) -> None:
    """What was kept compiled is run without the network; what is compiled later must not be of another model."""
    model, _ = (
        write_checkpoint(tmp_path, name, seed, architecture="poly", n_codes=4, weights="base")
        for seed, name in enumerate(("first", "second"))
    )
    disk = DiskCache(tmp_path / "cache", 1 << 30)
    load(model, backend="openvino", disk=disk)
    found = load(model, backend="openvino", disk=disk)
    if changed == "the transformer's config":
        config = json.loads((model / "backbone.json").read_text())
        (model / "backbone.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    else:
        end = "-base" if changed == "the base's weights" else ""
        shutil.copy(tmp_path / f"second{end}" / "model.safetensors", tmp_path / f"first{end}")
    with pytest.raises(CheckpointInvalid, match=r"first has changed since it was loaded; load it again$"):
        found.rank("w1", ["w2"])


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    assert "is no model: it holds neither polyrank.json nor config.json" in refusal(tmp_path)


@pytest.mark.parametrize("text", GARBAGE, ids=repr)
@pytest.mark.parametrize("name", ["polyrank.json", "backbone.json", "tokenizer.json"])
def test_garbage_for_json(poly: Path, name: str, text: str) -> None:
    (poly / name).write_text(text)
    assert name in refusal(poly)


@pytest.mark.parametrize("name", ["polyrank.json", "backbone.json", "tokenizer.json"])
def test_bytes_that_are_no_text(poly: Path, name: str) -> None:
    (poly / name).write_bytes(b"\xff\xfe{}")
    assert name in refusal(poly)


@pytest.mark.parametrize("name", ["polyrank.json", "backbone.json", "tokenizer.json", "model.safetensors"])
def test_a_file_cut_anywhere(poly: Path, name: str) -> None:
    whole = (poly / name).read_bytes()
    for share in (0.0, 0.01, 0.5, 0.99):
        (poly / name).write_bytes(whole[: int(len(whole) * share)])
        assert name in refusal(poly)
    (poly / name).write_bytes(whole[:-3])
    assert name in refusal(poly)


@pytest.mark.slow
def test_a_flipped_bit_in_the_weights_header(light: Path) -> None:
    """Whatever the bit says of names, types, shapes and offsets no longer fits."""
    file = light / "model.safetensors"
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in range(header):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        assert "model.safetensors" in refusal(light)


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


@pytest.mark.parametrize(("change", "reason"), [
    (lambda weights: weights.pop("code_vectors"), "1 tensors differ, the first is code_vectors"),
    (lambda weights: weights.update(extra=torch.zeros(1)), "1 tensors differ, the first is extra"),
    (lambda weights: weights.update(code_vectors=torch.zeros(3, 16)), "another shape"),
    (lambda weights: weights.update(code_vectors=torch.zeros(64)), "a tensor has another shape"),
    (lambda weights: weights.clear(), "tensors differ"),
])  # fmt: skip
def test_weights_that_do_not_fit(poly: Path, change: Callable[[dict[str, torch.Tensor]], object], reason: str) -> None:
    change_weights(poly, change)
    message = refusal(poly)
    assert "model.safetensors does not fit polyrank.json" in message
    assert reason in message


@pytest.mark.parametrize("raw", [
    {"model_type": "t5"},
    {"model_type": "clip"},
    {"model_type": "vit"},
    {"model_type": "whisper"},
    {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 44},
    {"model_type": "no such type"},
    {"model_type": 3},
    {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 3},
    {"model_type": "bert", "hidden_size": "sixteen"},
    {"model_type": "bert", "hidden_size": -16, "num_attention_heads": 2},
    {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 44},
], ids=str)  # fmt: skip
def test_a_foreign_config(poly: Path, raw: dict[str, object]) -> None:
    (poly / "backbone.json").write_text(json.dumps(raw))
    message = refusal(poly)
    assert "backbone.json" in message or "its config" in message or "model.safetensors does not fit" in message


@pytest.mark.slow
@pytest.mark.parametrize(("raw", "why"), [
    ({"num_hidden_layers": 1_000_000}, "claims a size of 1000000 as num_hidden_layers"),
    ({"num_hidden_layers": 65_000}, "parameters"),
    ({"num_hidden_layers": 10**9}, "claims a size of 1000000000"),
    ({"model_type": "modernbert", "num_hidden_layers": 10**9}, "claims a size of 1000000000"),
    ({"num_hidden_layers": 900, "hidden_size": 50_000, "num_attention_heads": 2}, "parameters"),
    ({"vocab_size": 10**9, "hidden_size": 50_000, "num_attention_heads": 2}, "claims a size of 1000000000"),
    ({"vocab_size": 10**7}, "parameters"),
    ({"model_type": "distilbert", "dim": 16, "n_heads": 2, "hidden_dim": 10**9}, "claims a size of 1000000000"),
    ({"model_type": "distilbert", "dim": 16, "n_heads": 2, "hidden_dim": 10**7}, "parameters"),
    ({"model_type": "albert", "embedding_size": 10**9}, "claims a size of 1000000000"),
    ({"model_type": "albert", "embedding_size": 10**6}, "parameters"),
    ({"model_type": "albert", "inner_group_num": 60_000}, "parameters"),
    ({"model_type": "albert", "num_hidden_groups": 60_000}, "parameters"),
    ({"model_type": "albert", "embedding_size": -(10**9), "vocab_size": 10**7}, "claims a size of -1000000000"),
    ({"model_type": "albert", "embedding_size": -(10**6), "vocab_size": 10**7}, "its config"),
])  # fmt: skip
@pytest.mark.timeout(60)
def test_a_transformer_that_no_memory_holds_is_not_built(poly: Path, raw: dict[str, object], why: str) -> None:
    config = json.loads((poly / "backbone.json").read_text())
    (poly / "backbone.json").write_text(json.dumps(config | raw))
    assert why in refusal(poly)


def test_code_of_a_remote_model_is_not_run(poly: Path, tmp_path: Path) -> None:
    (poly / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    (poly / "backbone.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.C"}})
    )
    refusal(poly)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["AutoModel", "AutoModelForSequenceClassification"])
def test_code_beside_a_config_of_a_type_without_a_model(tmp_path: Path, asked: str, monkeypatch) -> None:
    """transformers would ask at the terminal whether to run it."""
    base = write_base(tmp_path / "base", seed=0)
    (base / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    config = json.loads((base / "config.json").read_text()) | {"model_type": "trocr", "id2label": {"0": "a"}}
    config |= {"architectures": [asked.replace("Auto", "Bert")], "auto_map": {asked: f"{base}--evil.C"}}
    (base / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("sys.stdin", answers := io.StringIO("y\n" * 9))
    assert "no transformer can be built" in refusal(base)
    assert answers.tell() == 0, "somebody read an answer"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("family", "fields"), [
    ("detr", {"backbone": "owner/model", "use_timm_backbone": False}),
    ("dpt", {"backbone": "owner/model"}),
    ("upernet", {"backbone": "owner/model", "backbone_config": None}),
    ("timm_backbone", {"backbone": "owner/model"}),
    ("timm_wrapper", {"architecture": "owner/model"}),
    ("encoder-decoder", {"encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert"}}),
    ("bert", {"backbone": "owner/model", "attn_implementation": "owner/kernel", "use_kernels": True}),
    ("bert", {"_name_or_path": "owner/model", "_attn_implementation": "owner/kernel"}),
    ("bert", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}),
])  # fmt: skip
def test_what_a_config_names_is_not_looked_up(poly: Path, family: str, fields: dict[str, object], monkeypatch) -> None:
    """transformers asks the hub for models that a config names."""
    asked: list[object] = []

    def note(*address: object, **_: object) -> None:
        asked.append(address)
        raise OSError

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", note)
    config = json.loads((poly / "backbone.json").read_text()) | {"model_type": family} | fields
    (poly / "backbone.json").write_text(json.dumps(config))
    with suppress(ModelError):
        polyrank.load(poly)
    assert asked == []


SQUARE = {"num_heads": 2, "max_position_embeddings": 50_000, "classifier_dropout": 0.1}


def header_only(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file whose tensors take no room on the disk."""
    at, tensors = 0, {}
    for name, shape in shapes.items():
        size = 4 * prod(shape)
        tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + at)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "fields", "why"), [
    ("poly", {"n_codes": 400_000_000}, "n_codes is larger than"),
    ("poly", {"n_codes": 4_000_000}, "n_codes must be at least 1 and at most"),
    ("poly", {"n_codes": 65_000}, "another shape"),
    ("poly", {"n_codes": -4}, "n_codes must be"),
    ("poly", {"n_codes": 4.0}, "n_codes is 4.0"),
    ("poly", {"reduction_m": 10**30}, "reduction_m is 1e+30, not a whole number"),
    ("poly", {"reduction_m": 10**18}, "reduction_m is larger than"),
    ("poly", {"base": {"name": "\ud800", "sha256": ""}}, "polyrank.json is not JSON"),
    ("poly", {"format_version": "x" * 10_000}, "this release reads 1"),
    ("poly", {"max_context_tokens": 10**9}, "max_context_tokens is larger than"),
    ("poly", {"score_scale": 1e300}, "score_scale must be positive and at most"),
    ("poly", {"training": json.loads("[" * 500 + "]" * 500)}, "polyrank.json"),
    ("colbert", {"colbert": {"dim": 400_000_000}}, "colbert.dim is larger than"),
    ("colbert", {"colbert": {"dim": 65_000}}, "another shape"),
    ("colbert", {"colbert": {"dim": 4, "dropped": [10**12]}}, "colbert.dropped is larger than"),
    ("mix", {"mix": {"layers": [1] * 100_000}}, "mix: the transformer's layers are"),
    ("mix", {"mix": {"rows": 10**9}}, "mix.rows"),
    ("deformer", {"deformer": {"upper": 10**9}}, "deformer.upper is larger than"),
    ("bi", {"dense": [{"inputs": 60_000, "outputs": 60_000}]}, "tensors differ"),
    ("bi", {"dense": [{"inputs": 16, "outputs": 16}] * 70_000}, "dense has more than"),
    ("cross", {"labels": [str(n) for n in range(65_000)]}, "another shape"),
    ("cross", {"labels": [str(n) for n in range(70_000)]}, "labels has more than"),
])  # fmt: skip
def test_sizes_that_its_weights_do_not_have_take_no_memory(
    tmp_path: Path, architecture: str, fields: dict[str, object], why: str
) -> None:
    model = write_checkpoint(tmp_path, architecture, 0, architecture=architecture, shared_encoder=True)
    config = json.loads((model / "polyrank.json").read_text())
    (model / "polyrank.json").write_text(json.dumps(config | fields))
    with bounded_memory(), pytest.raises(CheckpointInvalid, match=re.escape(why)):
        read_checkpoint(model)


@pytest.mark.parametrize(("raw", "why"), [
    ({"num_labels": 10_000_000}, "claims a size of 10000000 as num_labels"),
    ({"num_labels": 10**400}, "backbone.json is not JSON: number is infinity"),
    ({"vocab_size": -44}, "its config"),
    ({"vocab_size": 10**30}, "backbone.json cannot be used"),
    ({"num_hidden_layers": 2.5}, "backbone.json"),
    ({"hidden_dropout_prob": float("nan")}, "backbone.json is not JSON"),
    ({"initializer_range": float("inf")}, "backbone.json is not JSON"),
    ({"rope_scaling": {"deep": [[[10**12]]]}}, "claims a size of 1000000000000 as deep"),
    ({"model_type": ["bert"]}, "no text encoder"),
    ({"model_type": "x" * 100_000}, "no text encoder"),
    # A mask of the square of its positions, which no file holds.
    ({"model_type": "gpt_neo", "attention_types": [[["global"], 2]], **SQUARE}, "parameters"),
], ids=lambda value: str(value)[:60])  # fmt: skip
def test_numbers_that_no_transformer_has(poly: Path, raw: dict[str, object], why: str) -> None:
    config = json.loads((poly / "backbone.json").read_text())
    (poly / "backbone.json").write_text(json.dumps(config | raw))
    with bounded_memory():
        message = refusal(poly)
    assert why in message
    assert len(message) < 2000


@pytest.mark.parametrize("fields", [
    {"chunk_size_feed_forward": "x"},
    {"chunk_size_feed_forward": 1000},
    {"output_hidden_states": "x", "output_attentions": [1]},
    {"return_dict": False},
    {"pad_token_id": -1},
], ids=str)  # fmt: skip
def test_how_a_config_wants_its_transformer_to_be_called_does_not_count(poly: Path, fields: dict[str, object]) -> None:
    found = polyrank.load(poly).rank(["w1 w2"], ["w3", "w4 w5"])
    (poly / "backbone.json").write_text(json.dumps(json.loads((poly / "backbone.json").read_text()) | fields))
    assert polyrank.load(poly).rank(["w1 w2"], ["w3", "w4 w5"]) == found


def test_a_published_dense_layer_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", seed=0)
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")
    (base / "modules.json").write_text(json.dumps([{"type": kind, "path": path} for kind, path in kinds]))
    (base / "2_Dense").mkdir()
    (base / "2_Dense" / "config.json").write_text(json.dumps({"in_features": 60_000, "out_features": 60_000}))
    save_file({"linear.weight": torch.zeros(2, 2), "linear.bias": torch.zeros(2)}, base / "2_Dense/model.safetensors")
    with bounded_memory():
        assert "another shape" in refusal(base)


def test_weights_without_end_are_not_hashed(light: Path) -> None:
    """200 GB of nothing, which a header claims to hold."""
    header_only(light / "model.safetensors", {"code_vectors": [50_000_000_000, 1]})
    with bounded_memory():
        assert "is larger than" in refusal(light)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let the process take a gigabyte more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("text", GARBAGE[:6], ids=repr)
def test_a_damaged_pooling_config(tmp_path: Path, text: str) -> None:
    base = write_base(tmp_path / "base", seed=0)
    (base / "1_Pooling").mkdir()
    (base / "1_Pooling" / "config.json").write_text(text)
    assert "1_Pooling" in refusal(base)


def test_more_tokens_than_the_transformer_has_positions(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", seed=0)
    for fields, asked in (
        ({"architecture": "bi", "max_context_tokens": 65, "max_candidate_tokens": 8}, 65),
        ({"architecture": "poly", "max_context_tokens": 8, "max_candidate_tokens": 66}, 66),
        ({"architecture": "cross", "max_context_tokens": 40, "max_candidate_tokens": 25}, 65),
    ):
        with pytest.raises(CheckpointInvalid, match=f"asks for {asked} tokens, the transformer allows 64"):
            polyrank.from_base(str(base), ModelConfig(base_name="", **fields))
    fits = ModelConfig(architecture="cross", base_name="", max_context_tokens=40, max_candidate_tokens=24)
    words = " ".join(["w1"] * 100)
    assert len(polyrank.from_base(str(base), fits).rank(words, [words])) == 1


def test_a_base_that_is_gone(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "light", 0, architecture="bi", weights="base")
    shutil.rmtree(tmp_path / "light-base")
    assert "neither a local directory nor" in refusal(checkpoint, ModelNotFound)


def test_a_base_with_other_weights(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "light", 0, architecture="bi", weights="base")
    base = tmp_path / "light-base"
    shutil.rmtree(base)
    write_base(base, seed=1)
    assert "expected" in refusal(checkpoint)
    assert "sha256" in refusal(checkpoint)


@pytest.mark.parametrize("lost", ["embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.bias"])
def test_a_base_that_lacks_a_tensor(tmp_path: Path, lost: str) -> None:
    base = write_base(tmp_path / "base", seed=0)
    change_weights(base, lambda weights: weights.pop(lost))
    assert f"lack 1 tensors, the first is {lost}" in refusal(base)


def test_a_base_whose_weights_are_of_another_size(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", seed=0)
    change_weights(base, lambda weights: weights.update({"embeddings.word_embeddings.weight": torch.zeros(43, 16)}))
    assert "do not fit its config" in refusal(base)


def test_a_truncated_base(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", seed=0)
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert "cannot be read as safetensors" in refusal(base)
