"""The loop makes replies better for people who are hidden from it; who learns and judges by what was taken does not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from command_line import call, write_rows
from loop_world import KNOWN, TOPICS, Server, Taken, World, clicks, in_the_canary, relevance, use
from server_process import ServerProcess
from tiny import write_base
from waiting import until

import polyrank
from polyrank.model.measures import Values
from polyrank.service.loop.statistics import compared, judged

CONVERSATIONS = 2500
GAIN = 0.03
FLAGS = {
    "--steps": 150, "--batch-size": 32, "--learning-rate": 5e-3, "--code-learning-rate": 5e-3, "--warmup-steps": 5,
    "--schedule": "cosine", "--looks": 1, "--dropout": 0, "--tune": "all", "--precision": "no",
}  # fmt: skip
TRAINING = [*(str(each) for pair in FLAGS.items() for each in pair), "--no-evidence"]
CANARY = {"canary_shares": [0.5], "step_hours": 0, "settle_minutes": 0, "watch_hours": 0}
SIZES = ["--max-context-tokens", "40", "--max-candidate-tokens", "16"]


def train(capsys: pytest.CaptureFixture[str], base: Path, data: Path, output: Path, *flags: str) -> Path:
    command = ("train", "--architecture", "bi", "--base", base, "--train", data, "--output", output, *TRAINING)
    assert call(capsys, *command, *flags, "--json").result["output"] == str(output)
    return output


def write_config(path: Path, store: Path, golden: Path) -> Path:
    told = {"store": str(store), "golden": [str(golden)], "train": TRAINING, "look_seconds": 0.2, **CANARY}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
    return path


def by_clicks(model: Path, taken: list[Taken]) -> Values:
    """Figures of a model if what people took from the live model's lists were the only right reply of each list."""
    ranker: Any = polyrank.load(model)
    ranks = []
    for each in taken:
        order = [each.shown[place] for place, _ in ranker.rank(each.asked.context, each.shown)]
        ranks.append(1 + order.index(each.text))
    return {"recall@1": (np.array(ranks) == 1).astype(float), "mrr": 1 / np.array(ranks)}


def test_the_loop_gains_relevance_that_it_never_sees_and_learning_and_judging_by_clicks_gains_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: Callable[..., ServerProcess]
) -> None:
    world = World()
    launch = write_rows(tmp_path / "launch.jsonl", world.examples(400, KNOWN, "launch"))
    golden = write_rows(tmp_path / "golden.jsonl", world.examples(300, range(TOPICS), "golden", others=7))
    live = train(capsys, write_base(tmp_path / "base", seed=0), launch, tmp_path / "live", *SIZES)
    pool, store = world.write_pool(tmp_path / "pool.jsonl"), tmp_path / "store"
    first = call(capsys, "build", "--model", live, "--pool", pool, "--store", store, "--json").result
    process = start(store=store, feedback="texts")
    questions = [world.asked() for _ in range(500)]
    with httpx2.Client(base_url=f"http://127.0.0.1:{process.ready()}", timeout=30) as client:
        server = Server(client)
        taken = use(world, server, CONVERSATIONS)
        before = relevance(world, server, questions)

        config = write_config(tmp_path / "loop.toml", store, golden)
        with in_the_canary(world, server, store):
            run = call(capsys, "loop", "run", "--config", config, "--json").result
        assert run["verdict"] == "switched", run
        assert re.match(r"\+0\.\d+ \[", run["stages"]["canary"]["said"]), "the canary sees it, too"
        current = (store / "CURRENT").read_text().strip()
        assert current != first["generation"]
        until(lambda: server.client.get("/index").json()["active"]["id"] == current)
        gained = relevance(world, server, questions) - before
        assert gained >= GAIN, (before, gained)

    # The control: who learns from what was taken, and asks what was taken later whether to switch.
    later = len(taken) * 4 // 5
    naive = train(capsys, live, clicks(taken[:later], tmp_path / "clicks.jsonl", shown=False), tmp_path / "naive")
    old, groups = by_clicks(live, taken[later:]), np.arange(len(taken) - later)
    for model in (naive, store / "generations" / current / "model"):
        seen = {"later": compared(by_clicks(model, taken[later:]), old, groups, [""] * len(groups), sets=1)}
        assert judged(seen)[0] == "refused", "clicks like what the live model showed first, so it stays as it is"
