"""Whole runs over tiny models: they learn, keep the best, stop where they must, and go on where they stopped."""

import json
import math
import random
from collections.abc import Callable
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from command_line import write_rows
from safetensors.torch import load_file, save_file
from tiny import write_base, write_checkpoint
from tiny_training import Stop, identical, interrupted, orders, rows, run, settings, write_examples, write_first_stage

import polyrank
from polyrank.model.architectures.bi import BiEncoder
from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.model.errors import (
    InvalidInput,
    OutOfMemory,
    OutputInUse,
    RankingError,
    TrainingDataInvalid,
    TrainingDiverged,
)
from polyrank.model.training import loop
from polyrank.model.training.config import STATE_FILE, Data, TrainConfig
from polyrank.model.training.data import draw_rows, survey
from polyrank.model.training.loop import look, selection_batches
from polyrank.model.training.objective import Batch, Measured
from polyrank.model.training.pair_objective import PairObjective
from polyrank.model.training.state import read_state, write_state
from polyrank.model.training.student import Student, start
from polyrank.model.training.vector_objective import VectorObjective

BASE_SEED = 0
pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "bi": {}, "poly": {"architecture": "poly"}, "cross": {"architecture": "cross", "negatives": 3},
    "cross pointwise": {"architecture": "cross", "negatives": 3, "loss": "pointwise"}, "adapters": {"lora_rank": 4},
}  # fmt: skip
DIVERGING = {"learning_rate": 1e30, "tune": "all-but-embeddings"}


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / WEIGHTS_FILE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_on_what_can_be_learnt(base: Path, data: Path, tmp_path: Path, kind: str) -> None:
    ranker, seen = run(settings(base, **KINDS[kind], steps=120), data, tmp_path / "out")
    assert len(seen.losses) == 120
    assert sum(seen.losses[-5:]) < 0.3 * sum(seen.losses[:5])
    first, last = seen.looks[0][1], min(loss for _, loss in seen.looks)
    assert last < 0.4 * first
    replies = [f"w{n}" for n in range(4, 8)]
    right = [replies[ranker.rank(row["context"], replies)[0][0]] == row["response"] for row in rows(80)]
    assert sum(right) > 50, "a guess has 20"


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_holds_the_best_look(base: Path, data: Path, tmp_path: Path, kind: str) -> None:
    """A rate is too high if the last look is not the best one; which rates are depends on how a processor rounds."""
    for rate in (0.05, 0.1, 0.2, 0.4):
        config = settings(base, **{**KINDS[kind], "learning_rate": rate, "looks": 3.0})
        output = tmp_path / f"{rate}"
        ranker, seen = run(config, data, output)
        best_step, best = seen.looks[np.argmin(seen.rescaled)]
        if best_step != seen.looks[-1][0]:
            break
    assert best_step != seen.looks[-1][0]
    assert ranker.config.training["step"] == best_step
    assert ranker.config.training["selection"]["loss"] == best
    again = settings(output, **{**KINDS[kind], "lora_rank": 0})
    student = start(again)
    kind = PairObjective if config.architecture == "cross" else VectorObjective
    objective = kind(student, again, torch.device("cpu"))
    corpus, _ = survey(data, False, 0.0, 1000)
    found = look(student.encoder, objective, selection_batches([corpus], config.batch_size))
    assert found.loss == pytest.approx(best, rel=2e-2 if config.lora_rank else 1e-4, abs=1e-5)


def test_the_summary_says_what_was_done(base: Path, data: Path, tmp_path: Path) -> None:
    ranker, seen = run(settings(base, steps=20), data, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "polyrank.json").read_text())["training"]
    assert summary == ranker.config.training
    assert set(summary) == {"step", "selection", "files", "settings", "steps", "seconds"}
    [report] = seen.reports
    assert summary["files"] == [
        {"name": "data.jsonl", "examples": report.kept, "held_out": report.held_out, "weight": float(report.kept)}
    ]
    assert report.kept + report.held_out == 80
    assert TrainConfig.of(**summary["settings"]) == settings(base, steps=20)
    assert summary["steps"] == 20
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"polyrank.json", "backbone.json", "tokenizer.json", WEIGHTS_FILE, "logs"}
    assert list((tmp_path / "out" / "logs").rglob("events.out.tfevents.*"))


def test_memory_savers_give_the_same_run(base: Path, data: Path, tmp_path: Path) -> None:
    _, plain = run(settings(base, steps=6), data, tmp_path / "plain")
    for at, fields in enumerate([{"gradient_cache": True, "chunk_tokens": 16}, {"chunk_tokens": 16}]):
        _, saved = run(settings(base, steps=6, **fields), data, tmp_path / f"{at}")
        assert saved.losses == pytest.approx(plain.losses, rel=1e-3)


@pytest.mark.parametrize("fields", [{}, {"tune": "all-but-embeddings"}, {"lora_rank": 4}, {"architecture": "cross"}])
def test_gradient_checkpointing_gives_the_same_run(base: Path, data: Path, tmp_path, fields: dict[str, Any]) -> None:
    fields = {"steps": 6, "dropout": None, **fields}
    _, plain = run(settings(base, **fields), data, tmp_path / "plain")
    _, saved = run(settings(base, **fields, gradient_checkpointing=True), data, tmp_path / "saved")
    assert saved.losses == pytest.approx(plain.losses, rel=1e-3)
    assert len(set(saved.losses)) > 1


@pytest.mark.parametrize("kind", ["bi", "cross", "residual"])
def test_half_precision_learns_too(base: Path, data: Path, tmp_path: Path, kind: str) -> None:
    fields = KINDS["cross"] | {"first_stage": str(write_first_stage(base)), "n_codes": None}
    fields = fields if kind == "residual" else KINDS[kind]
    own = {**fields, "precision": "bf16"}
    ranker, seen = run(settings(base, **own), Data([data], held_out=4), tmp_path / "out")
    assert sum(seen.losses[-5:]) < 0.6 * sum(seen.losses[:5])
    assert {each.dtype for each in weights(tmp_path / "out").values()} == {torch.float32}
    assert (ranker.config.weights, ranker.config.residual) == ("full", kind == "residual")
    assert ranker.architecture == fields.get("architecture", "bi")


Captured = list[tuple[list[dict[str, Any]], list[torch.Tensor]]]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Groups without their parameters, and gradients, of each optimizer step."""
    found: Captured = []
    original: Callable[..., Any] = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        groups = [{**group, "params": len(group["params"])} for group in self.param_groups]
        found.append((groups, [each.grad.clone() for group in self.param_groups for each in group["params"]]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    return found


@pytest.mark.parametrize(("score_scale", "clipped"), [(20.0, True), (0.02, False)])
def test_accumulated_batches_are_averaged_and_a_large_gradient_is_clipped(
    base: Path, data: Path, tmp_path: Path, captured: Captured, score_scale: float, clipped: bool
) -> None:
    config = settings(base, steps=1, accumulate=3, score_scale=score_scale)
    _, seen = run(config, data, tmp_path / "out")
    student = start(config)
    student.encoder.train()
    corpus, _ = survey(data, False, 0.0, 1000)
    objective = VectorObjective(student, config, torch.device("cpu"))
    losses = [
        objective.step(Batch(*drawn, random.Random(0)), lambda each: (each / 3).backward())
        for drawn in islice(draw_rows([corpus], 8, seed=0), 3)
    ]
    assert seen.losses == [pytest.approx(sum(losses) / 3)]
    [(_, found)] = captured
    parameters = student.trainable().values()
    norm = math.sqrt(sum(float(each.grad.square().sum()) for each in parameters if each.grad is not None))
    assert (norm > 1) == clipped
    expected = sorted(float((each.grad / max(norm, 1.0)).abs().sum()) for each in parameters if each.grad is not None)
    assert sorted(float(each.abs().sum()) for each in found) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_rates_follow_the_schedule_and_norms_do_not_decay(base: Path, data: Path, tmp_path, captured: Captured) -> None:
    config = settings(
        base, architecture="poly", steps=8, warmup_steps=4, schedule="linear", learning_rate=0.01,
        code_learning_rate=0.1, weight_decay=0.3,
    )  # fmt: skip
    run(config, data, tmp_path / "out")
    factors = [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    for (groups, _), factor in zip(captured, factors, strict=True):
        matrices, vectors, codes = groups
        assert [matrices["lr"], vectors["lr"], codes["lr"]] == pytest.approx(
            [0.01 * factor, 0.01 * factor, 0.1 * factor]
        )
        assert [matrices["weight_decay"], vectors["weight_decay"]] == [0.3, 0.0]
        assert codes["params"] == 1
    student = start(config)
    assert vectors["params"] == sum(each.ndim == 1 for each in student.trainable().values())


def test_the_plateau_is_observed_at_each_look(base: Path, data: Path, tmp_path: Path, captured: Captured) -> None:
    config = settings(base, steps=30, schedule="plateau", learning_rate=0.05, looks=3.0, warmup_steps=0)
    _, seen = run(config, data, tmp_path / "out")
    factor, best, expected = 1.0, math.inf, {}
    for step, loss in seen.looks:
        factor *= 0.4 if loss >= best else 1.0
        best = min(best, loss)
        expected[step] = factor
    assert factor < 1
    for step, (groups, _) in enumerate(captured):
        last = max(at for at in expected if at <= step)
        assert groups[0]["lr"] == pytest.approx(0.05 * expected[last])


def test_adamax_and_epochs(base: Path, data: Path, tmp_path: Path) -> None:
    _, seen = run(settings(base, optimizer="adamax", steps=None, epochs=2.0), data, tmp_path / "out")
    assert len(seen.losses) == 2 * (seen.reports[0].kept // 8)
    assert sum(seen.losses[-5:]) < sum(seen.losses[:5])


def test_it_stops_when_nothing_improves(base: Path, data: Path, tmp_path: Path) -> None:
    config = settings(base, steps=500, learning_rate=1e-9, code_learning_rate=1e-9, looks=3.0, patience=3)
    _, seen = run(config, data, tmp_path / "out")
    assert len(seen.losses) < 500
    best = int(np.argmin(seen.rescaled))
    assert len(seen.looks) == best + 1 + 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_is_no_number_stops_the_run_and_the_best_is_kept(
    base: Path, data: Path, tmp_path: Path, kind: str
) -> None:
    config = settings(base, **{**KINDS[kind], **DIVERGING, "code_learning_rate": 1e30})
    with pytest.raises(
        TrainingDiverged, match=r"the loss is nan at step \d+; lower --learning-rate\. .* keeps the best"
    ):
        run(config, data, tmp_path / "out")
    assert all(each.isfinite().all() for each in weights(tmp_path / "out").values())
    scores = [score for _, score in polyrank.load(tmp_path / "out").rank("w1 w2", ["w4", "w5 w6"])]
    assert all(map(math.isfinite, scores))
    assert len(set(scores)) == 2


def out_of_memory(when: Callable[[BiEncoder], bool], error: Exception) -> Callable[..., Any]:
    original = BiEncoder.encode_candidates

    def encode(self: BiEncoder, batch: Any) -> torch.Tensor:
        if when(self):
            raise error
        return original(self, batch)

    return encode


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to"),
])  # fmt: skip
@pytest.mark.parametrize("when", ["a step", "a look"])
def test_memory_that_does_not_suffice_is_told_with_what_to_do(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, when: str
) -> None:
    broken = out_of_memory(lambda encoder: encoder.training == (when == "a step"), error)
    monkeypatch.setattr(BiEncoder, "encode_candidates", broken)
    with pytest.raises(
        OutOfMemory, match=r"does not fit into memory; use --gradient-cache, lower --chunk-tokens, then"
    ):
        run(settings(base, steps=4), data, tmp_path / "out")


def test_the_optimizer_may_run_out_of_memory_too(base: Path, data: Path, tmp_path: Path, monkeypatch) -> None:
    def step(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(OutOfMemory):
        run(settings(base, steps=4), data, tmp_path / "out")


def test_another_error_is_not_dressed_up(base: Path, data: Path, tmp_path: Path, monkeypatch) -> None:
    broken = out_of_memory(lambda encoder: encoder.training, RuntimeError("a defect"))
    monkeypatch.setattr(BiEncoder, "encode_candidates", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        run(settings(base, steps=4), data, tmp_path / "out")


VARIANTS: list[dict[str, Any]] = [
    {"schedule": "plateau", "learning_rate": 0.05},
    {"architecture": "poly", "schedule": "cosine", "accumulate": 2, "gradient_cache": True},
    {"architecture": "cross", "negatives": 2, "optimizer": "adamax"},
    {"architecture": "poly", "lora_rank": 2, "patience": 2, "learning_rate": 0.05},
]


@pytest.mark.parametrize("fields", VARIANTS)
@pytest.mark.parametrize("at", [7, 20])
def test_a_resumed_run_ends_with_the_same_weights(
    base: Path, data: Path, tmp_path: Path, fields: dict[str, Any], at: int
) -> None:
    config = settings(base, **{"steps": 24, "looks": 2.0, "dropout": None, **fields})
    _, whole = run(config, data, tmp_path / "whole")
    interrupted(config, data, tmp_path / "out", min(at, len(whole.losses)))
    _, rest = run(config, data, tmp_path / "out", resume=at == 7)  # without it the same settings go on, too
    assert 0 < len(rest.losses) < len(whole.losses)
    assert rest.losses == whole.losses[-len(rest.losses) :]
    assert rest.looks == whole.looks[-len(rest.looks) :]
    assert identical(tmp_path / "out", tmp_path / "whole")
    with pytest.raises(OutputInUse, match="holds no unfinished run to resume"):
        run(config, data, tmp_path / "out", resume=True)


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_listed_negatives_are_drawn_anew_and_a_resumed_run_draws_the_same(
    base: Path, tmp_path: Path, architecture: str
) -> None:
    """Runs over lists that differ only behind the first two are different ones: those count as well."""
    listed = [{**row, "negatives": [f"w{20 + n}", f"w{21 + n}", f"w{22 + n}"]} for n, row in enumerate(rows(40))]
    data = write_rows(tmp_path / "data.jsonl", listed)
    others = [{**row, "negatives": [*row["negatives"][:2], "w9 w8"]} for row in listed]
    config = settings(base, architecture=architecture, steps=10, negatives=2, looks=1.0)
    _, whole = run(config, data, tmp_path / "whole")
    _, changed = run(config, write_rows(tmp_path / "others.jsonl", others), tmp_path / "changed")
    assert whole.losses != changed.losses
    interrupted(config, data, tmp_path / "out", 6)
    _, rest = run(config, data, tmp_path / "out", resume=True)
    assert rest.losses == whole.losses[-len(rest.losses) :]
    assert identical(tmp_path / "out", tmp_path / "whole")


def test_a_run_whose_last_step_was_made_only_has_to_be_finished(base: Path, data: Path, tmp_path: Path) -> None:
    config = settings(base, steps=12)
    interrupted(config, data, tmp_path / "out", 12)
    state = (tmp_path / "out" / STATE_FILE).read_bytes()
    _, _ = run(config, data, tmp_path / "out", resume=True)
    (tmp_path / "out" / STATE_FILE).write_bytes(state)  # as if killed between the summary and the state's removal
    ranker, _ = run(config, data, tmp_path / "out", resume=True)
    assert ranker.config.training["steps"] == 12
    assert not (tmp_path / "out" / STATE_FILE).exists()


def test_a_run_killed_while_it_weighs_words_can_be_resumed(base: Path, tmp_path: Path, monkeypatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Stop

    data = write_rows(tmp_path / "orders.jsonl", orders(560))
    with monkeypatch.context() as patch:
        patch.setattr("polyrank.model.training.run.weigh", killed)
        with pytest.raises(Stop):
            run(settings(base, steps=12), data, tmp_path / "out")
    assert polyrank.load(tmp_path / "out").config.evidence is None
    ranker, _ = run(settings(base, steps=12), data, tmp_path / "out", resume=True)
    assert ranker.config.evidence is not None
    assert not (tmp_path / "out" / STATE_FILE).exists()


def test_a_run_killed_while_it_writes_its_first_checkpoint_goes_on(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Student, directory: Path, training: object) -> None:
        (directory / WEIGHTS_FILE).touch()
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Student, "save", killed)
        with pytest.raises(Stop):
            run(settings(base, steps=4), data, tmp_path / "out")
    assert (tmp_path / "out" / STATE_FILE).is_file()
    run(settings(base, steps=4), data, tmp_path / "out")
    run(settings(base, steps=4), data, tmp_path / "whole")
    assert identical(tmp_path / "out", tmp_path / "whole")


def test_words_that_an_interrupted_run_weighed_do_not_count_without_evidence(base: Path, tmp_path: Path) -> None:
    def stop(_model: object) -> None:
        raise Stop

    data = write_rows(tmp_path / "orders.jsonl", orders(560))
    with pytest.raises(Stop):
        run(settings(base, steps=2), data, tmp_path / "out", then=stop)
    assert polyrank.load(tmp_path / "out").config.evidence is not None
    ranker, _ = run(settings(base, steps=2), data, tmp_path / "out", evidence=False)
    assert ranker.config.evidence is None
    assert "evidence" not in ranker.config.training
    assert "calibration" in ranker.config.training


def test_a_resumed_run_must_have_the_same_settings(base: Path, data: Path, tmp_path: Path) -> None:
    interrupted(settings(base, steps=20, looks=3.0), data, tmp_path / "out", 8)
    changed = settings(base, steps=20, looks=3.0, learning_rate=0.5, batch_size=4)
    with pytest.raises(InvalidInput, match=r"started with another batch-size \(8\), learning-rate \(0.01\); give"):
        run(changed, data, tmp_path / "out", resume=True)
    run(settings(base, steps=20, looks=3.0), data, tmp_path / "out", resume=True)


def write_model(directory: Path, seed: int, architecture: str) -> Path:
    """A checkpoint that holds its transformer's weights."""
    return write_checkpoint(directory.parent, directory.name, seed, architecture=architecture)


def test_a_resumed_run_must_have_as_many_processes(base: Path, data: Path, tmp_path: Path) -> None:
    config = settings(base, steps=20, looks=3.0)
    interrupted(config, data, tmp_path / "out", 8)
    state = read_state(tmp_path / "out")
    assert state["processes"] == 1
    write_state(tmp_path / "out", {**state, "processes": 2})
    with pytest.raises(InvalidInput, match="was started with another number of processes, 2; give the same"):
        run(config, data, tmp_path / "out", resume=True)


@pytest.mark.parametrize(("setting", "written"), [
    ("base", write_base), ("base", partial(write_model, architecture="bi")),
    ("teacher", partial(write_model, architecture="cross")),
    ("retriever", partial(write_model, architecture="bi")), ("retriever", write_base),
])  # fmt: skip
def test_a_resumed_run_must_have_the_same_models(
    base: Path, tmp_path: Path, setting: str, written: Callable[..., Path]
) -> None:
    data = write_rows(tmp_path / "data.jsonl", [{**row, "negatives": ["w30", "w31"]} for row in rows(80)])
    used = written(tmp_path / "used", seed=1)
    models = {"base": str(base), setting: str(used)}
    kind = "cross" if setting == "retriever" else "bi"
    config = settings(**models, steps=20, looks=3.0, architecture=kind)
    interrupted(config, data, tmp_path / "out", 8)
    former = weights(used)
    save_file({name: 1.01 * each for name, each in former.items()}, used / WEIGHTS_FILE)
    with pytest.raises(InvalidInput, match=f"was started with another {setting}: its files are not the same; give the"):
        run(config, data, tmp_path / "out", resume=True)
    save_file(former, used / WEIGHTS_FILE)
    run(config, data, tmp_path / "out", resume=True)


def test_the_base_of_a_resumed_run_may_lie_elsewhere(data: Path, tmp_path: Path) -> None:
    """As that of a generation that was compacted meanwhile."""
    used = write_base(tmp_path / "used", seed=1)
    interrupted(settings(used, steps=8, looks=3.0), data, tmp_path / "out", 4)
    ranker, _ = run(settings(used.rename(tmp_path / "moved"), steps=8, looks=3.0), data, tmp_path / "out", resume=True)
    assert ranker.config.training["steps"] == 8


class Scaling(Accelerator):
    """On a CPU accelerate scales nothing: here it does as on a GPU, and the scale grows soon."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)


def test_a_resumed_run_goes_on_with_the_scale_of_half_precision(base: Path, data: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "Accelerator", Scaling)
    config = settings(base, steps=24, looks=2.0)
    run(config, data, tmp_path / "whole")
    interrupted(config, data, tmp_path / "out", 14)
    assert read_state(tmp_path / "out")["scaler"]["scale"] > 2
    run(config, data, tmp_path / "out", resume=True)
    assert identical(tmp_path / "out", tmp_path / "whole")


def test_the_seconds_of_a_resumed_run_are_all_that_it_took(base: Path, data: Path, tmp_path: Path) -> None:
    config = settings(base, steps=20, looks=3.0)
    interrupted(config, data, tmp_path / "out", 8)
    state = read_state(tmp_path / "out")
    assert state["progress"]["seconds"] > 0
    state["progress"]["seconds"] = 5000.0
    write_state(tmp_path / "out", state)
    ranker, _ = run(config, data, tmp_path / "out", resume=True)
    assert 5000 <= ranker.config.training["seconds"] < 5300


def changed_file(data: Path, parent: Path) -> Data:
    found = rows(80)
    found[40]["response"] = "w20"
    return Data([write_rows(data, found)])


@pytest.mark.parametrize("other", [
    lambda data, parent: Data([write_examples(parent / "other.jsonl", 70)]),
    lambda data, parent: Data([data], weights=[3.0]),
    lambda data, parent: Data([data], every_turn=True),
    lambda data, parent: Data([data, data]),
    changed_file,
], ids=["another file", "another weight", "every turn", "more files", "changed since"])  # fmt: skip
def test_a_resumed_run_must_have_the_same_files(base: Path, tmp_path, other: Callable[[Path, Path], Data]) -> None:
    config = settings(base, steps=20, looks=3.0)
    data = write_examples(tmp_path / "data.jsonl")
    interrupted(config, data, tmp_path / "out", 8)
    with pytest.raises(InvalidInput, match="other training files, --weights, --every-turn or --held-out; give"):
        run(config, other(data, tmp_path), tmp_path / "out", resume=True)


def test_a_full_disk_keeps_the_best_checkpoint(base: Path, data: Path, tmp_path: Path, monkeypatch) -> None:
    """The disk is full from the third checkpoint on: the second one can still be loaded, and the run be resumed."""
    original, calls = Path.write_bytes, []

    def full(self: Path, content: bytes) -> int:
        calls.append(self)
        if len(calls) > 2:
            original(self, content[: len(content) // 2])
            raise OSError(28, "No space left on device", str(self))
        return original(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        run(settings(base), data, tmp_path / "out")
    monkeypatch.undo()
    assert len(calls) == 3
    assert math.isfinite(polyrank.load(tmp_path / "out").rank("w1", ["w2"])[0][1])
    run(settings(base), data, tmp_path / "out", resume=True)


def test_nothing_is_left_of_a_run_that_could_not_begin(base: Path, data: Path, tmp_path: Path) -> None:
    few = write_examples(tmp_path / "few.jsonl", 3)
    cross = write_checkpoint(tmp_path, "cross", 1, architecture="cross")
    for config, file, error in (
        (settings(base), few, TrainingDataInvalid),
        (settings(base, tune="top-9"), data, InvalidInput),
        (settings(base, teacher="lexical"), data, InvalidInput),
        (settings(base, teacher=str(base)), data, InvalidInput),
        (settings(base, architecture="cross", retriever=str(cross)), data, InvalidInput),
    ):
        with pytest.raises(error):
            run(config, file, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    run(settings(base, steps=2), data, tmp_path / "out")


@pytest.mark.parametrize(
    ("fields", "says"), [({"tune": "top-9"}, "tune is 'top-9'"), ({"max_context_tokens": 900}, "asks for 900 tokens")]
)
def test_wrong_settings_are_told_before_the_files_are_read(
    base: Path, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(RankingError, match=says):
        run(settings(base, **fields), tmp_path / "missing.jsonl", tmp_path / "out")


@pytest.mark.parametrize("listing", [0, 1])
def test_a_teacher_needs_negatives_in_every_file(base: Path, data: Path, tmp_path: Path, listing: int) -> None:
    teacher = write_checkpoint(tmp_path, "teacher", 1, architecture="cross")
    config = settings(base, teacher=str(teacher), steps=2)
    listed = write_rows(tmp_path / "listed.jsonl", [{**row, "negatives": ["w30"]} for row in rows(80)])
    files = [listed] * listing + [data]
    with pytest.raises(TrainingDataInvalid, match=r"data\.jsonl: no example lists negatives.*`polyrank mine`"):
        run(config, Data(files), tmp_path / "out")
    run(config, listed, tmp_path / "out")


@pytest.mark.parametrize(("teacher", "student"), [("cross", "bi"), ("cross", "poly"), ("mix", "poly")])
def test_a_run_learns_from_its_teacher(base: Path, data: Path, tmp_path: Path, teacher: str, student: str) -> None:
    examples = [{**row, "negatives": [f"w{n}" for n in range(4, 8) if f"w{n}" != row["response"]]} for row in rows(80)]
    listed = write_rows(tmp_path / "listed.jsonl", examples)
    run(settings(base, architecture=teacher, negatives=3), data, tmp_path / "teacher")
    config = settings(base, architecture=student, teacher=str(tmp_path / "teacher"), teacher_weight=1.0)
    ranker, seen = run(config, listed, tmp_path / "out")
    assert min(loss for _, loss in seen.looks) < 0.5 * seen.looks[0][1]
    assert ranker.rank(["w2 w2", "w30 w31"], ["w4", "w5", "w6", "w7"])[0][0] == 2


def test_a_cross_encoder_learns_from_a_retrievers_negatives(base: Path, data: Path, tmp_path: Path) -> None:
    run(settings(base), data, tmp_path / "retriever")
    mined = {"retriever": str(tmp_path / "retriever"), "negatives": 2, "batch_size": 4, "extra_replies": 12}
    config = settings(base, architecture="cross", steps=100, **mined)
    ranker, seen = run(config, data, tmp_path / "out")
    assert min(loss for _, loss in seen.looks) < 0.5 * seen.looks[0][1]
    assert ranker.rank(["w2 w2", "w30 w31"], ["w4", "w5", "w6", "w7"])[0][0] == 2


def test_files_are_drawn_from_by_their_weights(base: Path, data: Path, tmp_path: Path) -> None:
    more = write_rows(tmp_path / "more.jsonl", [{"context": [f"w{n} w9"], "response": f"w{n}"} for n in range(20)])
    ranker, seen = run(settings(base, steps=4), Data([data, more], [1.0, 2.5]), tmp_path / "out")
    assert [(each["name"], each["weight"]) for each in ranker.config.training["files"]] == [
        ("data.jsonl", 1.0),
        ("more.jsonl", 2.5),
    ]
    assert len(seen.reports) == 2


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInput, match="weights"):
        Data([Path("a"), Path("b")], weights)


def test_a_cross_encoder_learns_from_batches_of_one_where_they_list_negatives(base: Path, data: Path, tmp_path) -> None:
    config = settings(base, architecture="cross", batch_size=1, steps=2)
    listed = write_rows(tmp_path / "listed.jsonl", [{**row, "negatives": ["w30", "w31"]} for row in rows(80)])
    _, seen = run(config, listed, tmp_path / "out")
    assert seen.looks[0][1] > 0
    with pytest.raises(TrainingDataInvalid, match="raise --batch-size"):
        run(config, data, tmp_path / "none")


def test_a_cross_encoder_learns_from_batches_of_one_with_replies_of_others(base: Path, data: Path, tmp_path) -> None:
    config = settings(base, architecture="cross", batch_size=1, extra_replies=16, steps=4)
    _, seen = run(config, data, tmp_path / "out")
    assert len(seen.losses) == 4
    assert seen.looks[0][1] > 0


def test_a_look_has_as_many_replies_as_a_step(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def measure(_: VectorObjective, batch: Batch) -> Measured:
        sizes.append(len(batch.examples))
        return Measured(1.0, 0, len(batch.examples), [1.0])

    monkeypatch.setattr(VectorObjective, "measure", measure)
    config = settings(base, batch_size=2, extra_replies=4, steps=1)
    run(config, write_examples(tmp_path / "data.jsonl", 500), tmp_path / "out")
    *whole, rest = sizes[: len(sizes) // 2]  # two looks
    assert len(whole) > 3
    assert set(whole) == {6}
    assert 3 < rest < 10


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_look_that_is_no_number_is_never_the_best(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    losses = chain([2.0, value, 1.5, value, 1.7], repeat(value))

    def measure(_: VectorObjective, batch: Batch) -> Measured:
        return Measured(loss := next(losses), 0, len(batch.examples), [loss])

    monkeypatch.setattr(VectorObjective, "measure", measure)
    ranker, seen = run(settings(base, steps=40, looks=2.0), data, tmp_path / "out")
    assert len(seen.looks) > 4
    assert ranker.config.training["step"] == seen.looks[2][0]
    assert ranker.config.training["selection"]["loss"] == 1.5


@pytest.mark.parametrize(("told", "best"), [
    pytest.param(
        [(2.0, [2.0, 2.1]), (3.0, [1.6, 3.0]), (2.9, [1.5, 2.9]), (1.0, [1.7, 1.8]), (3.0, [1.6])], 2, id="too sure"
    ),
    pytest.param([(6.0, [1.4]), (0.6, [0.0]), (0.2, [0.1]), (0.1, [0.0]), (0.3, [0.0])], 3, id="all come first"),
])  # fmt: skip
def test_the_best_look_has_the_lowest_loss_at_the_scale_that_suits_it(
    base: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: list[tuple[float, list[float]]],
    best: int,
) -> None:
    """An untrained model whose scores say little has a lower loss than one that has learnt and is too sure of it."""
    looks = chain(told, repeat(told[-1]))

    def measure(_: VectorObjective, batch: Batch) -> Measured:
        loss, rescaled = next(looks)
        return Measured(loss, 0, len(batch.examples), rescaled)

    monkeypatch.setattr(VectorObjective, "measure", measure)
    ranker, seen = run(settings(base, steps=40, looks=2.0), data, tmp_path / "out")
    assert len(seen.looks) > 4
    assert ranker.config.training["step"] == seen.looks[best][0]
    assert ranker.config.training["selection"]["loss"] == told[best][0]


def test_a_model_that_is_no_number_from_the_start_is_told(base: Path, data: Path, tmp_path: Path) -> None:
    broken = write_base(tmp_path / "broken", seed=0)
    weights_of_it = load_file(broken / WEIGHTS_FILE)
    save_file({name: math.nan * each for name, each in weights_of_it.items()}, broken / WEIGHTS_FILE)
    with pytest.raises(TrainingDiverged, match="the loss is nan before the first step; give another --base"):
        run(settings(broken), data, tmp_path / "out")
