"""Writing a checkpoint over another: each file is old or new, and a kill between two of them does little harm."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from full_disk import FULL, fill_disk
from safetensors.torch import load_file
from tiny import write_checkpoint

import polyrank
from polyrank.model.checkpoint.files import (
    BACKBONE_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    CheckpointFiles,
    read_config,
    write_config,
)
from polyrank.model.errors import CheckpointInvalid

FILES = [WEIGHTS_FILE, CONFIG_FILE, BACKBONE_FILE, TOKENIZER_FILE]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("files"), "poly", 0, architecture="poly", n_codes=4)


@pytest.fixture
def directory(source: Path, tmp_path: Path) -> Path:
    """A checkpoint to write over."""
    return Path(shutil.copytree(source, tmp_path / "checkpoint"))


@pytest.fixture
def better(source: Path) -> CheckpointFiles:
    """What a run of training writes next: other weights and another summary."""
    config = replace(read_config(source / CONFIG_FILE), training={"step": 2})
    weights = {name: tensor + 0.5 for name, tensor in load_file(source / WEIGHTS_FILE).items()}
    return CheckpointFiles(config, source, weights)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def write_killed(files: CheckpointFiles, directory: Path, replaced: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, and die after so many files are replaced."""
    original, left = os.replace, iter(range(replaced))

    def limited(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", limited)
        with pytest.raises(KeyboardInterrupt):
            files.write(directory)


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("full_at", FILES)
def test_a_full_disk_leaves_the_old_file(directory: Path, better: CheckpointFiles, full_at: str, monkeypatch) -> None:
    before = contents(directory)
    fill_disk(monkeypatch, directory / full_at)
    with pytest.raises(OSError, match="No space left"):
        better.write(directory)
    after = contents(directory)
    assert set(after) == set(before)
    unreached = FILES[FILES.index(full_at) :]
    assert {name: after[name] for name in unreached} == {name: before[name] for name in unreached}
    polyrank.load(directory)


def test_a_config_is_replaced_as_a_whole(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, config = contents(directory), read_config(directory / CONFIG_FILE)

    def killed(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text.encode()[:20])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            write_config(directory / CONFIG_FILE, replace(config, training={"step": 3}))
    assert contents(directory) == before
    write_config(directory / CONFIG_FILE, replace(config, training={"step": 3}))
    assert read_config(directory / CONFIG_FILE).training == {"step": 3}


@pytest.mark.parametrize("replaced", range(len(FILES)))
def test_a_first_checkpoint_cut_short_is_refused_and_can_be_written_again(
    better: CheckpointFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    directory = tmp_path / "new"
    write_killed(better, directory, replaced, monkeypatch)
    assert set(contents(directory)) == set(FILES[:replaced])
    with pytest.raises(CheckpointInvalid, match=r"is no model|is missing"):
        polyrank.load(directory)
    better.write(directory)
    assert polyrank.load(directory).fingerprint == better.fingerprint


@pytest.mark.parametrize("replaced", range(len(FILES)))
def test_a_better_checkpoint_cut_short_has_the_weights_of_one_of_the_two(
    directory: Path, better: CheckpointFiles, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    """Never better figures over the former weights."""
    before = polyrank.load(directory)
    write_killed(better, directory, replaced, monkeypatch)
    assert polyrank.load(directory).fingerprint == (better if replaced else before).fingerprint
    assert read_config(directory / CONFIG_FILE).training == ({"step": 2} if replaced > 1 else {})


@pytest.mark.parametrize("replaced", range(2))
def test_a_checkpoint_of_another_kind_cut_short_is_the_former_or_refused(
    directory: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    before = polyrank.load(directory).fingerprint
    write_checkpoint(tmp_path, "cross", 1, architecture="cross")
    weights = {name: torch.clone(each) for name, each in load_file(tmp_path / "cross" / WEIGHTS_FILE).items()}
    config = read_config(tmp_path / "cross" / CONFIG_FILE)
    other = CheckpointFiles(config, source, weights)
    write_killed(other, directory, replaced, monkeypatch)
    if replaced:
        with pytest.raises(CheckpointInvalid, match="does not fit"):
            polyrank.load(directory)
    else:
        assert polyrank.load(directory).fingerprint == before


def test_a_checkpoint_of_the_earlier_name_is_the_same_model_and_gets_the_new_one(directory: Path) -> None:
    now = polyrank.load(directory)
    (directory / BACKBONE_FILE).rename(directory / "config.json")
    before = polyrank.load(directory)
    assert before.fingerprint == now.fingerprint
    assert before.rank("w1 w2", ["w3", "w4 w5"]) == now.rank("w1 w2", ["w3", "w4 w5"])
    before.save(directory)
    assert set(contents(directory)) == set(FILES)
    assert polyrank.load(directory).fingerprint == now.fingerprint


def test_other_tools_refuse_a_checkpoint(directory: Path) -> None:
    """They would take it for a base model whose weights are missing, and draw them at random."""
    from transformers import AutoModel

    with pytest.raises((ValueError, OSError), match=r"Unrecognized model|config\.json"):
        AutoModel.from_pretrained(directory)
