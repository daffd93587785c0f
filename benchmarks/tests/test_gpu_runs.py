"""Whole scripts over tiny models: prepare, train, measure, adopt."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from benchmarks.gpu import matrix, pack, prepare, ship
from benchmarks.gpu.adopt import adopt
from benchmarks.gpu.measured import Clock
from tiny import write_base
from tiny_training import rows

import polyrank
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.service.cli.commands.evaluate import measure

TINY = {"max_context_tokens": 40, "max_candidate_tokens": 16}
REPLIES = tuple(f"w{n}" for n in range(4, 8))


@pytest.fixture(scope="module", autouse=True)
def _anew() -> Iterator[None]:
    """Reset Accelerate, which keeps the precision of the first run in a process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.fixture(scope="module")
def real_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("real") / "base", seed=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every set has the same examples; those to evaluate on list all four replies."""
    directory = tmp_path_factory.mktemp("data")
    for name in (*pack.TRAINING, *pack.EVALUATION):
        (directory / name).parent.mkdir(exist_ok=True)
        with new_dialogues(directory / name) as write:
            for row in rows():
                listed = REPLIES if name in pack.EVALUATION else ()
                label = listed.index(row["response"]) if listed else -1
                write(Dialogue(Conversation.of(row["context"]), row["response"], listed, label, (), row["dialogue"]))
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: Path, real_base: Path) -> Path:
    output = tmp_path_factory.mktemp("pack") / "gpu"
    prepare.prepare(data, data, str(real_base), output)
    return output


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """chat-poly, trained on the rounded base for a few steps."""
    output = tmp_path_factory.mktemp("shipped")
    small = {"steps": 6, "batch_size": 8, "warmup_steps": 1, **TINY}
    ship.ship("chat-poly", ship.config_of("chat-poly", folder / pack.BASE, **small), folder, output)
    return output


def test_a_reranker_is_shipped_likewise(tmp_path: Path, folder: Path) -> None:
    small = {"steps": 2, "batch_size": 4, "negatives": 3, "warmup_steps": 1, **TINY}
    ship.ship("chat-uni", ship.config_of("chat-uni", folder / pack.BASE, **small), folder, tmp_path)
    figures = json.loads((tmp_path / "chat-uni.json").read_text())
    assert list(figures["evaluation"]) == list(pack.EVALUATION)
    assert polyrank.load(tmp_path / "chat-uni").architecture == "uni"


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_folder_is_as_large_as_said_and_holds_all_files(data: Path, real_base: Path, tmp_path: Path) -> None:
    size = prepare.prepare(data, data, str(real_base), tmp_path / "gpu")
    assert size == bytes_in(tmp_path / "gpu")
    assert all((tmp_path / "gpu" / name).read_bytes() == (data / name).read_bytes() for name in pack.TRAINING)
    assert (tmp_path / "gpu/base/model.safetensors").stat().st_size < (real_base / "model.safetensors").stat().st_size


def test_a_folder_too_large_to_travel_is_not_written(
    data: Path, real_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "MOST_BYTES", 1000)
    with pytest.raises(InvalidInput, match="more than 1000; use a smaller base model"):
        prepare.prepare(data, data, str(real_base), tmp_path / "gpu")
    assert not (tmp_path / "gpu").exists()


def test_sets_that_are_missing_are_named(real_base: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"convai2_train.jsonl.zst, .*: no such file"):
        prepare.prepare(tmp_path, tmp_path, str(real_base), tmp_path / "gpu")


def test_a_folder_in_use_is_left_alone(data: Path, real_base: Path, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="is not empty"):
        prepare.prepare(data, data, str(real_base), folder)


def test_a_shipped_model_comes_with_its_figures(shipped: Path) -> None:
    figures = json.loads((shipped / "chat-poly.json").read_text())
    assert figures["steps"] == 6
    assert figures["examples_per_second"] > 0
    assert figures["settings"]["context_vectors"] == "codes"
    assert list(figures["evaluation"]) == list(pack.EVALUATION)
    for found in figures["evaluation"].values():
        assert found["examples"] == 80
        low, high = found["recall@1"]["interval"]
        assert 0 <= low <= found["recall@1"]["value"] <= high <= 1


def test_the_figures_are_those_of_the_command(shipped: Path, folder: Path) -> None:
    told = json.loads((shipped / "chat-poly.json").read_text())["evaluation"]
    for name in pack.EVALUATION:
        found = measure(str(shipped / "chat-poly"), folder / name).as_object()
        for figure in ("recall@1", "recall@5", "mrr"):
            assert told[name][figure]["value"] == pytest.approx(found[figure])
            assert told[name][figure]["interval"] == pytest.approx(found["interval"][figure])


def test_looks_do_not_count_in_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 100.0, 101.0, 103.0, 150.0, 151.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    for event in ("look", "step", "step", "look", "step", "step"):
        clock(event, 1, 4, {})
    assert clock.seconds == [1.0, 1.0]


def test_an_adopted_adapter_refers_to_the_real_base_and_scores_alike(
    shipped: Path, real_base: Path, tmp_path: Path
) -> None:
    before = polyrank.load(shipped / "chat-poly").rank("w1 w1", REPLIES)
    checkpoint = Path(shutil.copytree(shipped / "chat-poly", tmp_path / "chat-poly"))
    fingerprint = adopt(checkpoint, str(real_base))
    ranker = polyrank.load(checkpoint)
    assert (ranker.fingerprint, ranker.config.base_name) == (fingerprint, str(real_base))
    assert ranker.config.training["settings"]["base"] == str(real_base)
    after = dict(ranker.rank("w1 w1", REPLIES))
    assert after == pytest.approx(dict(before), rel=0.02, abs=0.02)
    assert adopt(checkpoint, str(real_base)) == fingerprint


def test_another_base_is_refused_and_the_checkpoint_stays_as_it_is(shipped: Path, tmp_path: Path) -> None:
    other = write_base(tmp_path / "other", seed=1)
    before = (shipped / "chat-poly/polyrank.json").read_bytes()
    with pytest.raises(InvalidInput, match="trained on other weights"):
        adopt(shipped / "chat-poly", str(other))
    assert (shipped / "chat-poly/polyrank.json").read_bytes() == before


def test_only_adapters_are_adopted(real_base: Path, tmp_path: Path) -> None:
    polyrank.from_base(str(real_base)).save(tmp_path / "plain")
    with pytest.raises(InvalidInput, match="holds base weights; only an adapter"):
        adopt(tmp_path / "plain", str(real_base))
    with pytest.raises(InvalidInput, match="no checkpoint"):
        adopt(tmp_path, str(real_base))


def test_a_run_of_the_table_that_fails_does_not_end_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**TINY, "batch_size": 8}.items():
        monkeypatch.setitem(matrix.SHARED, name, value)
    results = tmp_path / "results.jsonl"
    names = ["bi-top-3", "poly-16", "bi"]  # the tiny base has two layers
    configs = matrix.left_to_do(names, results, folder, examples=16)
    assert not matrix.run_all(configs, folder, results)
    assert "bi-top-3: tune is 'top-3'" in capsys.readouterr().err
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(each["run"], each["steps"], list(each["evaluation"])) for each in records] == [
        ("poly-16", 2, list(pack.EVALUATION)),
        ("bi", 2, list(pack.EVALUATION)),
    ]
    assert list(matrix.left_to_do(names, results, folder, examples=16)) == ["bi-top-3"]
