"""Compiled parts and the choice of `auto`, kept on disk from one process to the next."""

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import write_base
from tiny_int8 import quantised_checkpoint, require_int8

import polyrank
from polyrank.model import threads
from polyrank.model.checkpoint.discovery import StoredModel
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.inference import auto, compiler, disk_cache, openvino_backend
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.runners import Runner
from polyrank.model.rankers.load import load
from polyrank.model.registry import UniConfig
from polyrank.model.text.assembly import Conversation

pytestmark = pytest.mark.slow

CONTEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]
TEXTS = ["w3 w4", "w9", "w1 w2 w3 w4 w5 w6", "w7"]
KINDS: dict[str, dict[str, Any]] = {
    "bi": {"architecture": "bi", "reduction": "mean"},
    "poly": {"architecture": "poly", "n_codes": 4},
    "cross": {"architecture": "cross"},
    "residual": {"architecture": "cross", "residual": True, "n_codes": 4},
    "uni": {"architecture": "uni"},
    "arrow": {"architecture": "uni", "own": UniConfig(mask="arrow")},
}
TORCH, OPENVINO = Runner("torch", "float32"), Runner("openvino", "float32")


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of the process may have measured already."""
    monkeypatch.setattr(auto, "_measured", {})


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", 1 << 30)


def checkpoint(tmp_path: Path, kind: str = "poly", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    base = write_base(tmp_path / f"base {seed}", seed)
    config = ModelConfig(base_name="", max_context_tokens=40, max_candidate_tokens=16, **KINDS[kind])
    polyrank.from_base(str(base), config).save(tmp_path / f"{kind} {seed}")
    return tmp_path / f"{kind} {seed}"


def outputs(ranker: Any) -> list[np.ndarray]:
    """All numbers that the model can give: of each context with each text, or of both sides."""
    if not ranker.retrieves:
        return [np.array([score for _, score in ranker.rank(context, TEXTS)]) for context in CONTEXTS]
    contexts = [ranker.tokenize_context(Conversation.of(each))[0] for each in CONTEXTS]
    return [*ranker.encode_contexts(contexts), ranker.encode_candidates(ranker.tokenize_candidates(TEXTS)[0])]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models whose networks are read from now on."""
    read: list[str] = []
    right = StoredModel.read

    def noted(self: StoredModel) -> Any:
        read.append(self.files.fingerprint)
        return right(self)

    monkeypatch.setattr(StoredModel, "read", noted)
    return read


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_compiled_before_gives_the_same_bits_without_its_network(
    kind: str, tmp_path: Path, disk: DiskCache, unread: list[str]
) -> None:
    path = checkpoint(tmp_path, kind)
    made = outputs(load(path, backend="openvino", precision="float32", disk=disk))
    assert len(unread) == 1
    found = load(path, backend="openvino", precision="float32", disk=disk)
    again = outputs(found)
    assert len(unread) == 1
    assert (found.backend, found.precision) == OPENVINO
    for one, other in zip(made, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.encoder is not None
    assert len(unread) == 2, "it is read when it is asked for"


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "int8"])
def test_every_precision_is_kept_for_itself(precision: str, tmp_path: Path, disk: DiskCache, unread: list[str]) -> None:
    if not openvino_backend.is_supported(precision):
        pytest.skip(f"OpenVINO cannot run in {precision} here")
    path = quantised_checkpoint(checkpoint(tmp_path))
    unread.clear()
    load(path, backend="openvino", precision="float32", disk=disk)
    made, again = (load(path, backend="openvino", precision=precision, disk=disk) for _ in range(2))
    assert made.precision == again.precision == precision
    assert len(unread) == 2, "once for each precision"
    for one, other in zip(outputs(made), outputs(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_int8_is_made_anew_for_another_calibration(tmp_path: Path, disk: DiskCache, unread: list[str]) -> None:
    require_int8()
    path = checkpoint(tmp_path)
    found = []
    for reach in (8.0, 8.0, 9.0):
        quantised_checkpoint(path, reach)
        unread.clear()
        found.append((outputs(load(path, backend="openvino", precision="int8", disk=disk)), len(unread)))
    (first, read), (again, not_read), (other, read_anew) = found
    assert (read, not_read, read_anew) == (1, 0, 1)
    for one, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, same)
    assert any((one != different).any() for one, different in zip(first, other, strict=True))


@pytest.mark.parametrize("fastest", [TORCH, OPENVINO], ids=str)
def test_auto_remembers_what_an_earlier_process_measured(
    fastest: Runner, tmp_path: Path, disk: DiskCache, unread: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(auto, "measured", lambda forwards, _: {each: 1 + 9 * (each != fastest) for each in forwards})
        first = load(path, backend="auto", precision="float32", disk=disk)
        made = outputs(first)
    assert (first.backend, first.precision) == fastest
    monkeypatch.setattr(auto, "_measured", {})
    monkeypatch.setattr(auto, "measured", None)
    again = load(path, backend="auto", precision="float32", disk=disk)
    for one, other in zip(made, outputs(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (again.backend, again.precision) == fastest
    assert list(again.choice.milliseconds.items()) == list(first.choice.milliseconds.items()), "the safest first"
    assert len(unread) == (2 if fastest == TORCH else 1), "torch needs the network"


def test_what_was_measured_before_decides_for_all_parts_of_a_model(tmp_path, disk: DiskCache, monkeypatch) -> None:
    path = checkpoint(tmp_path)

    def measure(fastest: Runner) -> None:
        monkeypatch.setattr(auto, "_measured", {})
        monkeypatch.setattr(
            auto, "measured", lambda forwards, _: {each: 1 + 9 * (each != fastest) for each in forwards}
        )

    measure(OPENVINO)
    load(path, backend="auto", precision="float32", disk=disk)  # the candidates' part alone
    measure(TORCH)
    second = load(path, backend="auto", precision="float32", disk=disk)
    outputs(second)
    assert (second.backend, second.choice.milliseconds["torch float32"]) == ("openvino", 10_000.0)
    third = load(path, backend="auto", precision="float32", disk=disk)
    assert third.choice.milliseconds == second.choice.milliseconds


@pytest.mark.parametrize(("share", "says"), [(0.79, ["back-ends were timed beside other work"]), (0.81, [])])
def test_what_was_measured_beside_other_work_is_said_and_measured_anew_after_a_day(
    share: float, says: list[str], tmp_path: Path, disk: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path, now, shares = checkpoint(tmp_path), [1.0e9], [1.0, share]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(auto, "share_of_processors", lambda: shares.pop(0))

    def started(fastest: Runner) -> str:
        """Start as another process, in which this back-end would be measured to be the fastest."""
        monkeypatch.setattr(auto, "_measured", {})
        monkeypatch.setattr(
            auto, "measured", lambda forwards, _: {each: 1 + 9 * (each != fastest) for each in forwards}
        )
        backend: str = load(path, backend="auto", precision="float32", disk=disk).backend
        return backend

    assert started(OPENVINO) == "openvino"
    assert [message for message in caplog.messages if "timed" in message] == says
    now[0] += 86_000
    assert started(TORCH) == "openvino", "processes that are started within a day run the same"
    now[0] += 1000
    shares += [1.0, 1.0]
    assert started(TORCH) == ("torch" if says else "openvino")
    now[0] += 1e9
    assert started(OPENVINO) == ("torch" if says else "openvino"), "measured undisturbed, it holds"


def test_a_clock_that_is_set_back_does_not_make_a_disturbed_measurement_hold_for_years(
    tmp_path: Path, disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now, shares = checkpoint(tmp_path), [2.0e9], [1.0, 0.5, 1.0, 1.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(auto, "share_of_processors", lambda: shares.pop(0))
    for fastest, at in ((OPENVINO, 2.0e9), (TORCH, 1.0e9)):
        now[0] = at
        monkeypatch.setattr(auto, "_measured", {})
        monkeypatch.setattr(
            auto,
            "measured",
            lambda forwards, _, fastest=fastest: {each: 1 + 9 * (each != fastest) for each in forwards},
        )
        assert load(path, backend="auto", precision="float32", disk=disk).backend == fastest.backend


def test_the_share_of_the_processors_is_told() -> None:
    assert 0 < auto.share_of_processors() < 2


def test_a_back_end_that_was_chosen_before_and_fails_now_is_left(
    tmp_path: Path, disk: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint(tmp_path)
    monkeypatch.setattr(auto, "measured", lambda forwards, _: {each: 1 + 9 * (each != OPENVINO) for each in forwards})
    assert load(path, backend="auto", precision="float32", disk=disk).backend == "openvino"
    for entry in (tmp_path / "cache").iterdir():
        if entry.stat().st_size > 2000:
            entry.unlink()  # the model; that it was chosen is still known
    monkeypatch.setattr("openvino.Core.compile_model", lambda *_: 1 / 0)
    again = load(path, backend="auto", precision="float32", disk=disk)
    assert again.backend == "torch"
    assert list(again.choice.refused) == ["openvino float32, candidates"]
    assert "back-end refused" in caplog.messages


@pytest.mark.parametrize("backend", ["openvino", "auto"])
def test_of_several_that_start_together_one_compiles(
    backend: str, tmp_path: Path, disk: DiskCache, unread: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint(tmp_path)
    monkeypatch.setattr(auto, "measured", lambda forwards, _: {each: 1 + 9 * (each != OPENVINO) for each in forwards})
    right = openvino_backend.compiled
    compiles = []

    def slowly(*arguments: Any) -> Any:
        compiles.append(arguments)
        time.sleep(0.3)
        return right(*arguments)

    monkeypatch.setattr(openvino_backend, "compiled", slowly)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: load(path, backend=backend, precision="float32", disk=disk), range(3)))
    assert {each.backend for each in made} == {"openvino"}
    assert len(compiles) == len(unread) == 1
    texts = made[0].tokenize_candidates(TEXTS)[0]
    for each in made[1:]:
        np.testing.assert_array_equal(each.encode_candidates(texts), made[0].encode_candidates(texts))


def test_a_cache_that_stays_locked_stops_nobody(tmp_path: Path, disk: DiskCache, monkeypatch, caplog) -> None:
    monkeypatch.setattr(disk_cache, "PATIENCE", 0.1)
    with disk.alone():
        load(checkpoint(tmp_path), backend="openvino", precision="float32", disk=disk)
    assert [record.levelname for record in caplog.records if "locked" in record.message] == ["WARNING"]


def test_other_weights_and_another_number_of_threads_are_compiled_for_themselves(
    tmp_path: Path, disk: DiskCache, unread: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = checkpoint(tmp_path), checkpoint(tmp_path, seed=1)
    load(path, backend="openvino", precision="float32", disk=disk)
    load(other, backend="openvino", precision="float32", disk=disk)
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_chosen", 3)
    load(path, backend="openvino", precision="float32", disk=disk)
    torch.set_num_threads(before)  # it was told
    assert len(unread) == 3


@pytest.mark.parametrize("module", ["openvino_core.py", "inference/passes.py"])
def test_what_is_kept_was_made_by_the_same_code(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "model"
    shutil.copytree(compiler._MODEL, copied, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiler, "_MODEL", copied)
    digest = compiler.code.__wrapped__
    before = digest(*compiler._CODE)
    (copied / module).write_text((copied / module).read_text() + "# changed")
    assert digest(*compiler._CODE) != before


@pytest.mark.parametrize("damage", ["its bytes", "what it means", "its facts", "no facts"])
def test_what_cannot_be_used_is_made_anew_with_one_warning(
    damage: str, tmp_path: Path, disk: DiskCache, unread: list[str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path = checkpoint(tmp_path, "cross")
    made = outputs(load(path, backend="openvino", precision="float32", disk=disk))
    [entry] = (tmp_path / "cache").iterdir()
    caplog.clear()
    if damage == "its bytes":
        entry.write_bytes(entry.read_bytes()[:-1] + b"x")
        again = outputs(load(path, backend="openvino", precision="float32", disk=disk))
        says = "a kept model is damaged and is made anew"
    elif damage.endswith("facts"):
        header, _, data = entry.read_bytes()[64:].partition(b"\n")
        facts = {"bytes": "x", "sizes": None} if damage == "its facts" else {}
        content = json.dumps({**json.loads(header), "facts": facts}).encode() + b"\n" + data
        entry.write_bytes(sha256(content).hexdigest().encode() + content)
        again = outputs(load(path, backend="openvino", precision="float32", disk=disk))
        says = "a kept model cannot be used and is made anew"
    else:
        with monkeypatch.context() as patched:
            patched.setattr("openvino.Core.import_model", lambda *_: 1 / 0)
            again = outputs(load(path, backend="openvino", precision="float32", disk=disk))
        says = "a kept model cannot be used and is made anew"
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [says]
    assert len(unread) == 2
    for one, other in zip(made, again, strict=True):
        np.testing.assert_array_equal(one, other)
    load(path, backend="openvino", precision="float32", disk=disk)
    assert len(unread) == 2, "the new one is kept"


def test_measurements_that_make_no_sense_are_none(tmp_path: Path, disk: DiskCache, monkeypatch) -> None:
    path = checkpoint(tmp_path)
    chosen = load(path, backend="auto", disk=disk)
    for entry in (tmp_path / "cache").iterdir():
        header, _, data = entry.read_bytes()[64:].partition(b"\n")
        for name, facts in (("seconds", {"seconds": [["torch"]], "until": "soon"}), ("verdicts", {"verdicts": 5})):
            if name in json.loads(header)["facts"]:
                content = json.dumps({**json.loads(header), "facts": facts}).encode() + b"\n" + data
                entry.write_bytes(sha256(content).hexdigest().encode() + content)
    monkeypatch.setattr(auto, "_measured", {})
    again = load(path, backend="auto", disk=disk)
    assert again.choice.milliseconds.keys() == chosen.choice.milliseconds.keys()


def test_a_damaged_checkpoint_is_refused_whatever_is_kept(tmp_path: Path, disk: DiskCache) -> None:
    path = checkpoint(tmp_path)
    load(path, backend="openvino", precision="float32", disk=disk)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointInvalid, match=r"model\.safetensors cannot be read"):
        load(path, backend="openvino", precision="float32", disk=disk)


def test_what_gives_wrong_numbers_is_not_kept_but_said_at_every_start(
    tmp_path: Path, disk: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("polyrank.model.inference.trials.agree", lambda *_: False)
        with pytest.raises(InvalidInput, match="are wrong for this model"):
            load(path, backend="openvino", precision="float32", disk=disk)
        assert list((tmp_path / "cache").iterdir()) == []
        first = load(path, backend="auto", precision="float32", disk=disk)
    caplog.clear()
    again = load(path, backend="auto", precision="float32", disk=disk)
    assert first.backend == again.backend == "torch"
    assert first.choice == again.choice
    assert "back-end refused before" in caplog.messages
    assert all(entry.stat().st_size < 2000 for entry in (tmp_path / "cache").iterdir()), "no model"


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path, usual_cache: Path) -> None:
    polyrank.load(checkpoint(tmp_path), backend="openvino")
    assert not usual_cache.exists()


@pytest.mark.parametrize("kind", ["poly", "uni"])
def test_a_kept_model_is_run_without_importing_what_makes_networks(kind: str, tmp_path: Path, disk: DiskCache) -> None:
    path = checkpoint(tmp_path, kind)
    outputs(load(path, backend="openvino", precision="float32", disk=disk))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from polyrank.model.inference.disk_cache import DiskCache\n"
        "from polyrank.model.rankers.load import load\n"
        "ranker = load(sys.argv[1], backend='openvino', disk=DiskCache(Path(sys.argv[2]), 1 << 30))\n"
        "ranker.rank('w1 w2', ['w1', 'w2'])\n"
        "print('transformers' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "cache")]
    limit = {"OMP_NUM_THREADS": str(threads.count())}  # an earlier test of this process may have chosen it
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **limit})
    assert ended.stdout == "False\n", ended.stderr
