"""`polyrank loop` from a log of feedback to a new live model, killed again and again, and ended where it must be."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from command_line import COMMAND, Outcome, call, pool_rows, start, write_rows
from loop_store import write_config, write_golden, write_store, written

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.config import CalibrationConfig
from polyrank.service.feedback.identity import Identity
from polyrank.service.loop.run import _Stages
from polyrank.service.loop.state import Runs, StageDone

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with feedback that no run has learnt from, and a golden set."""
    folder = tmp_path_factory.mktemp("taught")
    write_store(folder, written(600, liked=True))
    write_golden(folder / "golden.jsonl")
    return folder


@pytest.fixture
def folder(taught: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(taught, tmp_path / "copy")


def run(folder: Path, **settings: Any) -> Outcome:
    """Run the loop as a process of its own."""
    process = start("loop", "run", "--config", write_config(folder, **settings), "--json")
    out, err = process.communicate(timeout=900)
    return Outcome(process.returncode, out, err)


def made(folder: Path) -> tuple[dict[str, dict[str, str]], bytes, bytes, CalibrationConfig | None]:
    """What a run has made, to the byte: outputs of its stages, figures, vectors and calibration of what is active."""
    runs, store = Runs(folder / "store"), GenerationStore(folder / "store")
    latest = runs.latest()
    assert (latest.verdict, store.current()) == ("switched", latest.new)
    outputs = {name: done.outputs for name, done in latest.stages.items() if name != "build"}
    vectors = store.path(str(latest.new)) / "embeddings.bin"
    del outputs["gate"]  # figures, which name the golden set by its path
    judged = (runs.path(latest.id) / "gate.json").read_bytes().replace(str(folder).encode(), b"")
    calibration = read_config(store.model_directory(str(latest.new)) / CONFIG_FILE).calibration
    return outputs, judged, vectors.read_bytes(), calibration


def test_killed_at_any_moment_it_ends_with_the_same_bytes(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    """Half of the kills hit the command alone, whose stage goes on; the others hit both. They come ever later."""
    other = shutil.copytree(folder, tmp_path / "other")
    whole = run(other)
    assert whole.result["verdict"] == "switched"
    draw, kills = random.Random(), 0
    arguments = [*COMMAND, "loop", "run", "--config", str(write_config(folder))]
    while True:
        process = subprocess.Popen(
            arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            # A stage that is killed each time would never end; two kills come before any run can have ended.
            process.wait(draw.uniform(0, 3 + 5 * max(kills - 1, 0)))
        except subprocess.TimeoutExpired:
            kills += 1
            if draw.random() < 0.5:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
        else:
            assert process.returncode == 0
            break
    assert kills > 1
    assert made(folder) == made(other)
    calibration = made(folder)[-1]
    assert calibration.prior == 0.5, "it is fitted by labels"
    assert run(other).result["why"] == "479 examples, 0 of them new; 50 new ones make a run"
    said = call(capsys, "loop", "status", "--store", other / "store").out.splitlines()
    assert said[1:] == [
        "nothing new: 479 examples, 0 of them new; 50 new ones make a run",
        f"last verdict on a model, of run {whole.result['run']}: switched: {whole.result['new']} is active",
    ]
    assert not list((folder / "store" / "loop").glob("*/data"))


def test_nothing_new_and_what_is_said_of_it(capsys: Capture, folder: Path) -> None:
    store = folder / "store"
    status = call(capsys, "loop", "status", "--store", store)
    assert status.out == f"{store}: the loop never ran; polyrank loop run begins it\n"
    config = write_config(folder, least_examples=480)
    assert call(capsys, "loop", "status", "--config", config).out == status.out
    assert call(capsys, "loop", "abort", "--config", config).out == f"{store}: no run is under way\n"
    assert call(capsys, "loop", "abort", "--store", store).out == f"{store}: no run is under way\n"
    ended = call(capsys, "loop", "run", "--config", config)
    assert (ended.status, ended.out) == (0, "nothing new: 479 examples, 479 of them new; 480 new ones make a run\n")
    [name] = Runs(store).ids()
    said = call(capsys, "loop", "status", "--store", store).out.splitlines()
    assert said == [f"run {name}, to replace generation {GenerationStore(store).current()}", ended.out.rstrip()]
    told = call(capsys, "loop", "status", "--store", store, "--json").result
    assert (told["verdict"], told["stage"], told["at_work"], told["stages"]) == ("nothing new", None, False, {})
    assert sorted(path.name for path in (store / "loop" / name).iterdir()) == ["state.json"]


def test_an_abort_ends_what_is_at_work(capsys: Capture, folder: Path) -> None:
    process = start("loop", "run", "--config", write_config(folder), "--json")
    store, runs = folder / "store", Runs(folder / "store")
    while (latest := runs.latest()) is None or latest.stage != "train":
        time.sleep(0.1)
        assert process.poll() is None
    assert "  train    at work\n" in call(capsys, "loop", "status", "--store", store).out
    aborted = call(capsys, "loop", "abort", "--store", store)
    assert (aborted.status, aborted.out) == (0, "aborted: somebody has asked for it, in stage train\n")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["verdict"]) == (0, "aborted")
    assert not runs.is_at_work()
    # The same examples are worth another run, because no model was judged by them.
    again = call(capsys, "loop", "run", "--config", write_config(folder, least_examples=480))
    assert again.out == "nothing new: 479 examples, 479 of them new; 480 new ones make a run\n"


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_erased_is_not_learnt_from(capsys: Capture, folder: Path, is_killed: bool) -> None:
    store, runs = folder / "store", Runs(folder / "store")
    [log] = (store / "feedback").glob("*.jsonl")
    [secret] = written(1, seed=9)
    identity = Identity.of(store)
    digest = identity.conversation("chat 7")
    ranking = replace(secret.ranking, id=identity.ranking_id(secret.ranking.at, digest), conversation=digest)
    events = [replace(each, ranking=ranking.id) for each in secret.events]
    with log.open("ab") as file:
        file.writelines(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in (ranking, *events))
    process = start("loop", "run", "--config", write_config(folder), "--json")
    while (latest := runs.latest()) is None or latest.stage != "train" or not runs.is_at_work():
        time.sleep(0.1)
        assert process.poll() is None
    assert latest.stages["collect"].said == "480 examples, 480 of them new"
    if is_killed:
        process.kill()
        process.communicate()
    erased = call(capsys, "feedback", "erase", "--store", store, "--conversation", "chat 7")
    assert "the run of the loop that might have learnt from it collects anew\n" in erased.out
    if is_killed:
        assert [path.name for path in runs.path(latest.id).iterdir() if path.suffix != ".npy"] == ["state.json"]
        assert not runs.is_at_work()
        process = start("loop", "run", "--config", write_config(folder), "--json")
    out, err = process.communicate(timeout=900)
    assert (process.returncode, json.loads(out)["verdict"]) == (0, "switched"), err
    assert json.loads(out)["stages"]["collect"]["said"] == "479 examples, 479 of them new"


def test_a_stage_that_fails_is_tried_again(capsys: Capture, folder: Path) -> None:
    wrong = run(folder, mine=["--depth", "0"])
    assert wrong.status == 1
    assert "--depth: must be a whole number from 1" in wrong.err
    last = wrong.err.splitlines()[-1]
    assert last.startswith(
        "polyrank: mine ended with exit status 2, and says above why; the same command tries it again"
    )
    status = call(capsys, "loop", "status", "--store", folder / "store").out
    assert "  train    nobody is at work; polyrank loop run goes on with it\n" in status


def at_the_build(folder: Path, model: Path) -> None:
    """Let a run have come to its build, with this model."""
    runs, live = Runs(folder / "store"), GenerationStore(folder / "store").active()
    begun = runs.begin(live.id, live.model.fingerprint)
    begun.stages = {name: StageDone({}, {}, "done") for name in ("collect", "train", "gate")}
    runs.write(begun)
    shutil.copytree(model, runs.path(begun.id) / "model")
    (runs.path(begun.id) / "data").mkdir()
    shutil.copy(folder / "golden.jsonl", runs.path(begun.id) / "data" / "later.jsonl")


def test_the_index_stays_and_one_that_finds_too_little_is_refused(capsys: Capture, folder: Path) -> None:
    model, store = folder / "untrained", folder / "store"
    pool = write_rows(folder / "large.jsonl", pool_rows(3000))
    for asked, verdict in (("IVF4,Flat", "switched"), ("PQ1x1", "refused")):
        built = ("build", "--model", model, "--pool", pool, "--store", store, "--index", asked)
        assert call(capsys, *built, "--min-recall", "1").status == 0
        at_the_build(folder, model)
        ended = run(folder).result
        active = GenerationStore(store).active()
        assert (ended["verdict"], active.index.factory, active.min_recall) == (verdict, asked, 1.0)
    assert ended["why"].startswith("recall@10 of PQ1x1 is 0.")
    assert "below the 1 asked for" in ended["why"]


def test_a_build_waits_for_others_and_a_compaction_meanwhile_is_no_switch(capsys: Capture, folder: Path) -> None:
    model, store = folder / "untrained", GenerationStore(folder / "store")
    built = ("build", "--model", model, "--pool", folder / "pool.jsonl", "--store", store.root, "--no-activate")
    copy = call(capsys, *built, "--json").result["generation"]
    at_the_build(folder, model)
    live = store.current()
    assert live is not None
    with store.building():
        process = start("loop", "run", "--config", write_config(folder), "--json")
        assert process.stderr is not None
        assert any(line.startswith("waiting: another build") for line in process.stderr), "it has ended"
        store.make_copy_active(live, store.manifest(copy))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    ended = json.loads(out)
    assert (ended["verdict"], ended["live"], store.current()) == ("switched", copy, ended["new"])


def test_a_compaction_as_a_stage_begins_is_followed(capsys: Capture, folder: Path, monkeypatch) -> None:
    """The stage has begun with the generation that was active before."""
    store = GenerationStore(folder / "store")
    live, options = store.active(), ("--pool", folder / "pool.jsonl", "--store", store.root, "--no-activate", "--json")
    model = store.model_directory(live.id)
    copy = call(capsys, "build", "--model", model, *options).result["generation"]
    begin = _Stages._child

    def late(stages: _Stages, name: str, *arguments: object) -> None:
        if store.current() == live.id:
            store.make_copy_active(live.id, store.manifest(copy))
        begin(stages, name, *arguments)

    monkeypatch.setattr(_Stages, "_child", late)
    ended = call(capsys, "loop", "run", "--config", write_config(folder, mine=["--depth", "0"]))
    assert f"train: once more, a compaction has made {copy} of {live.id}\n" in ended.err
    assert "polyrank: mine ended with exit status 2" in ended.err
    latest = Runs(store.root).latest()
    assert latest.live == copy


def test_a_lexical_model_has_nothing_to_train(capsys: Capture, tmp_path: Path) -> None:
    pool = write_rows(tmp_path / "pool.jsonl", [{"id": "a", "text": "w1 w2"}])
    call(capsys, "build", "--model", "lexical", "--pool", pool, "--store", tmp_path / "store")
    write_golden(tmp_path / "golden.jsonl", 1)
    refused = call(capsys, "loop", "run", "--config", write_config(tmp_path))
    assert (refused.status, refused.out) == (2, "")
    assert not Runs(tmp_path / "store").ids()


def test_wrong_settings_are_wrong_usage(capsys: Capture, folder: Path) -> None:
    wrong = call(capsys, "loop", "run", "--config", write_config(folder, steps=3))
    path = folder / "loop.toml"
    assert wrong.failure(2) == f"unknown setting in {path}: steps; did you mean step_hours?"
