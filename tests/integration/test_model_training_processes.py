"""A run of several processes, one after the other's death or side by side, ends as one would expect of one."""

import json
import signal
import socket
import time
from pathlib import Path

import torch
from command_line import Outcome, ended, forked
from safetensors.torch import load_file
from warm_python import WarmProcess, WarmPython

import polyrank
from polyrank.model.training.config import STATE_FILE
from polyrank.model.training.state import read_state

BASE_SEED = 0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
RECIPE = [
    "--architecture=poly", "--batch-size=8", "--learning-rate=0.01", "--warmup-steps=2",
    "--dropout=0.1", "--precision=no", "--max-context-tokens=40", "--max-candidate-tokens=16", "--json",
]  # fmt: skip


def killed_with_a_state(process: WarmProcess, output: Path, former: int) -> int:
    """Kill a run as soon as it has written the state of a step after that; returns the step."""
    step, deadline = former, time.monotonic() + 60
    while step <= former:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
        if (output / STATE_FILE).exists():
            step = read_state(output)["progress"]["step"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was still at work"
    return step


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(warm_python, base: Path, data: Path, tmp_path) -> None:
    def train(name: str, *flags: str) -> WarmProcess:
        given = ["--base", base, "--train", data, "--output", tmp_path / name, *RECIPE, "--steps=120", *flags]
        return forked(warm_python, "train", *given, **ONE_THREAD)

    step = killed_with_a_state(train("out"), tmp_path / "out", 0)
    killed_with_a_state(train("out", "--resume"), tmp_path / "out", step)
    resumed = ended(train("out", "--resume"))
    whole = ended(train("whole"))
    assert resumed.result["fingerprint"] == whole.result["fingerprint"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert weights[0] == weights[1]
    assert resumed.result["step"] == whole.result["step"] > 0
    assert not (tmp_path / "out" / STATE_FILE).exists()
    looks = [int(line.split()[1]) for line in resumed.err.splitlines() if line.startswith("look ")]
    assert 0 not in looks, "it did not begin anew"


TWO = """
import json, os, sys, time
from pathlib import Path
from safetensors.torch import save_file
from polyrank.model.training.config import STATE_FILE, TrainConfig
from polyrank.model.training.data import survey
from polyrank.model.training.loop import Begun, Training
from polyrank.model.training.vector_objective import VectorObjective
from polyrank.model.training.student import start

base, data, output = map(Path, sys.argv[1:])
config = TrainConfig.of(
    architecture="poly", base=str(base), n_codes=3, steps=20, batch_size=4, learning_rate=0.01, dropout=0.1,
    warmup_steps=2, schedule="plateau", max_context_tokens=40, max_candidate_tokens=16, tune="all", precision="no",
)
student = start(config)
begun = Begun(config, student, [survey(data, False, 0.0, 1000)], VectorObjective)
training = Training(begun, output, time.monotonic())
losses = {"step": {}, "look": {}}
rows, unrecorded = [], VectorObjective.step

def step(self, drawn, *given):
    rows.append([example.dialogue for example in drawn.examples])
    return unrecorded(self, drawn, *given)

VectorObjective.step = step

def watch(event, step, steps, figures):
    losses[event][step] = figures["loss"]
    if event == "look":
        weights = {name: each.detach().clone() for name, each in student.encoder.state_dict().items()}
        save_file(weights, output / f"{os.environ['RANK']}-{step}.safetensors")

training.run(watch)
told = {**losses, "rows": rows, "progress": vars(training.progress), "processes": int(os.environ["WORLD_SIZE"])}
(output / f"{os.environ['RANK']}.json").write_text(json.dumps(told))
"""


def launch_two(python: WarmPython, *command: object) -> Outcome:
    """Run a script, or a module behind "-m", in two processes, as `torchrun` does."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return ended(python.start(*launcher, *command, **ONE_THREAD, CUDA_VISIBLE_DEVICES=""))


def test_two_processes_have_the_same_weights_at_every_look(warm_python, base: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    output = tmp_path / "out"
    output.mkdir()
    done = launch_two(warm_python, tmp_path / "two.py", base, data, output)
    assert done.status == 0, done.err
    one, other = (json.loads((output / f"{rank}.json").read_text()) for rank in (0, 1))
    assert one["processes"] == 2
    assert one["look"] == other["look"], "both look at the same slice"
    assert one["progress"].pop("seconds") > other["progress"].pop("seconds") == 0, "the one that reports counts them"
    assert one["progress"] == other["progress"]
    epoch = [name for rank in (one, other) for batch in rank["rows"][:9] for name in batch]
    assert len(set(epoch)) == len(epoch) == 9 * 2 * 4, "of the file's 72 examples none comes twice"
    assert set(one["step"]) == {str(step) for step in range(1, 21)}
    assert one["step"] == other["step"], "the loss told is that of all processes: they would stop together"
    for step in one["look"]:
        first, second = (load_file(output / f"{rank}-{step}.safetensors") for rank in (0, 1))
        assert all(torch.equal(each, second[name]) for name, each in first.items())
    best = one["progress"]["best_step"]
    assert best > 0
    assert one["look"][str(best)] < 0.6 * one["look"]["0"]
    ranker = polyrank.load(output)
    assert ranker.config.training["step"] == best
    saved = load_file(output / f"0-{best}.safetensors")
    assert all(torch.equal(each, saved[name]) for name, each in ranker.encoder.state_dict().items())


def test_the_command_runs_in_two_processes_and_one_of_them_reports(
    warm_python: WarmPython, base: Path, data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = [
        "polyrank.service.cli", "train", "--base", base, "--train", data, "--output", output, *RECIPE, "--steps=30",
    ]  # fmt: skip
    done = launch_two(warm_python, "-m", *command)
    assert done.status == 0, done.err
    *_, line = done.out.splitlines()  # gloo greets on standard output
    result = json.loads(line)
    assert result["fingerprint"] == polyrank.load(output).fingerprint
    assert result["steps"] == 30
    assert [line.split(":")[0] for line in done.err.splitlines() if "look 0 of" in line] == ["look 0 of 30"]
    assert not (output / STATE_FILE).exists()


def test_two_agents_as_on_two_machines_give_the_weights_of_one(warm_python, base: Path, data: Path, tmp_path) -> None:
    """Each machine has its own agent; they meet at an address of the first one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = f"127.0.0.1:{server.getsockname()[1]}"

    def train(name: str, *launcher: object) -> WarmProcess:
        given = ["--base", base, "--train", data, "--output", tmp_path / name, *RECIPE, "--steps=30"]
        command = [*launcher, "-m", "polyrank.service.cli", "train", *given]
        return warm_python.start("-m", "torch.distributed.run", *command, **ONE_THREAD, CUDA_VISIBLE_DEVICES="")

    agents = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={meeting}", "--rdzv-id=run"]
    machines = [train("machines", *agents, "--local-addr=127.0.0.1") for _ in range(2)]
    outcomes = [ended(machine) for machine in machines]
    assert [each.status for each in outcomes] == [0, 0], outcomes[0].err + outcomes[1].err
    assert [each.out.count('"fingerprint"') for each in outcomes].count(1) == 1, "one process reports"
    together = ended(train("together", "--standalone", "--nproc-per-node=2"))
    assert together.status == 0, together.err
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("machines", "together")]
    assert weights[0] == weights[1]


DIVERGING = """
import os
from pathlib import Path
import sys
from polyrank.model.errors import TrainingDiverged
from polyrank.model.training.vector_objective import VectorObjective

exec(Path(sys.argv.pop(1)).read_text().split("training.run(watch)")[0])
if os.environ["RANK"] == "1":
    VectorObjective.step, whole = (lambda *given: whole(*given) * float("nan")), VectorObjective.step
try:
    training.run(watch)
except TrainingDiverged as error:
    (output / f"{os.environ['RANK']}.told").write_text(str(error))
finally:
    training.end()
"""


def test_where_one_process_diverges_all_stop(warm_python: WarmPython, base: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "diverging.py").write_text(DIVERGING)
    output = tmp_path / "out"
    output.mkdir()
    done = launch_two(warm_python, tmp_path / "diverging.py", tmp_path / "two.py", base, data, output)
    assert done.status == 0, done.err
    told = [(output / f"{rank}.told").read_text() for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0].startswith("the loss is nan at step 1; lower --learning-rate.")
