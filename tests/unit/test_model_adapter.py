"""Low-rank adapters: merged as written, refused where they do not fit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import write_base
from tiny_training import run, settings, write_examples
from torch import Tensor, nn

import polyrank
from polyrank.model.checkpoint.read import merge, split
from polyrank.model.errors import CheckpointInvalid

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


def test_split_goes_by_names() -> None:
    tensors = {**pair(), "code_vectors": torch.ones(1), "lora_A.x": torch.ones(1)}
    adapter, others = split(tensors)
    assert sorted(adapter) == [f"{NAME}.lora_A", f"{NAME}.lora_B"]
    assert sorted(others) == ["code_vectors", "lora_A.x"]


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
