"""What a checkpoint says of a Cross-encoder's attention, and what of it does not go together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny import write_checkpoint

import model
from model.errors import CheckpointInvalid

ONE_WAY: dict[str, Any] = {"architecture": "cross", "attention": "one-way", "n_codes": 5}
REPLIES = ["w6", "w7 w8 w9", "w3 w4 w5", "w10 w11 w12 w13"]


def rewrite(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = json.loads((directory / "polyrank.json").read_text())
    change(raw)
    (directory / "polyrank.json").write_text(json.dumps(raw))


def test_it_holds_what_a_poly_encoders_does_and_a_head(tmp_path: Path) -> None:
    written = [
        write_checkpoint(tmp_path, "one-way", 1, **ONE_WAY),
        write_checkpoint(tmp_path, "poly", 2, architecture="poly", n_codes=5),
    ]
    one_way, poly = (load_file(each / "model.safetensors") for each in written)
    assert {name: each.shape for name, each in one_way.items()} == {
        **{name: each.shape for name, each in poly.items()},
        "head.weight": (1, 16),
    }


def test_one_that_does_not_say_how_it_attends_is_of_full_attention(tmp_path: Path) -> None:
    """As an older release wrote it."""
    checkpoint = write_checkpoint(tmp_path, "cross", 1, architecture="cross")
    before = model.load(checkpoint)
    rewrite(checkpoint, lambda raw: raw.pop("attention"))
    loaded = model.load(checkpoint)
    assert loaded.config.attention == "full"
    assert loaded.fingerprint == before.fingerprint
    assert loaded.rank("w1 w2", REPLIES) == before.rank("w1 w2", REPLIES)


@pytest.mark.parametrize("architecture", ["poly", "bi"])
def test_one_way_attention_of_two_towers_scored_apart_is_refused(tmp_path: Path, architecture: str) -> None:
    checkpoint = write_checkpoint(tmp_path, "c", 1, architecture=architecture)
    rewrite(checkpoint, lambda raw: raw.update(attention="one-way"))
    with pytest.raises(CheckpointInvalid, match=r"^polyrank\.json: attention one-way is for cross$"):
        model.load(checkpoint)


def test_weights_of_the_other_attention_do_not_fit(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "c", 1, **ONE_WAY)
    rewrite(checkpoint, lambda raw: raw.update(attention="full"))
    with pytest.raises(CheckpointInvalid, match=r"does not fit polyrank\.json: \d+ tensors differ"):
        model.load(checkpoint)


def test_each_side_may_be_as_long_as_the_transformer_allows(tmp_path: Path) -> None:
    """They make no joint sequence; the tiny transformer has 64 positions."""
    write_checkpoint(tmp_path, "longest", 1, **ONE_WAY, max_context_tokens=64, max_candidate_tokens=64)
    long = " ".join(f"w{n % 40}" for n in range(100))
    assert len(model.load(tmp_path / "longest").rank(long, [long, "w1"])) == 2
    for side in ("max_context_tokens", "max_candidate_tokens"):
        with pytest.raises(CheckpointInvalid, match="asks for 65 tokens, the transformer allows 64"):
            write_checkpoint(tmp_path, side, 1, **ONE_WAY, **{side: 65})
