"""Canary and watch of a run whose command is killed again and again, beside a live server that people use."""

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from command_line import forked
from server_process import Callers, ServerProcess
from service_fakes import pool
from tiny import write_checkpoint
from warm_python import WarmProcess, WarmPython

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.loop.state import Runs, StageDone
from polyrank.service.loop.trial import look

MAY_LOSE = 0.03
MOST_KILLS = 6  # in a stage; then it may go on to the next one
SETTINGS = {"step_hours": 0, "settle_minutes": 0, "look_seconds": 0.1, "watch_share": 0.2}
# By verdict: steps of the canary, and seconds of the watch, which ends sooner if it goes back.
CASES = {"switched": ([0.2, 0.5], 8), "withdrawn": ([0.2, 0.5], 8), "rolled back": ([0.5], 60)}


class Town(Callers):
    """A store with a run that has come to its canary, a server of it, and people who ask and say how it ended.

    Attributes:
        ends_badly: of the conversations that a generation answered, which share.
    """

    def __init__(self, root: Path, start: Callable[..., ServerProcess], verdict: str) -> None:
        self.store, self.ends_badly = GenerationStore(root / "store"), dict[str, float]()
        for seed in (0, 1):
            model = write_checkpoint(root, f"model {seed}", seed, architecture="bi", normalize=True)
            build(polyrank.load(model), pool(40), self.store.root, BuildOptions(activate=seed == 0))
        self.live, self.new = self.store.ids()
        self.runs = Runs(self.store.root)
        models = [self.store.manifest(each).model.fingerprint for each in (self.live, self.new)]
        run = self.runs.begin(self.live, models[0])
        run.stages = {name: StageDone({}, {}, "done") for name in ("collect", "train", "gate")}
        run.stages["build"] = StageDone({}, {"generation": self.new, "fingerprint": models[1]}, "done")
        self.runs.write(run)
        self.config = root / "loop.toml"
        shares, watch_seconds = CASES[verdict]
        own = {"store": str(self.store.root), "canary_shares": shares, "watch_hours": watch_seconds / 3600}
        self.config.write_text("".join(f"{name} = {value!r}\n" for name, value in {**SETTINGS, **own}.items()))
        self.failed, self.answered = list[str](), Counter[str]()
        self._base = f"http://127.0.0.1:{start(store=self.store.root, feedback='ids').ready()}"
        super().__init__(*(partial(self._ask, number) for number in range(3)))

    def _ask(self, number: int) -> None:
        draw, calls = random.Random(number), 0
        with httpx2.Client(base_url=self._base, timeout=30) as client:
            while not self.stop.is_set():
                calls += 1
                answer = self._posted(client, "/rank", {"context": "w1 w2", "conversation": f"{number} {calls}"})
                if answer is not None:
                    self.answered[answer["generation"]] += 1
                    if draw.random() < self.ends_badly.get(answer["generation"], 0.02):
                        event = {"ranking_id": answer["ranking_id"], "kind": "handed_over", "event_id": "end"}
                        self._posted(client, "/feedback", {"events": [event]})

    def _posted(self, client: httpx2.Client, path: str, body: dict[str, Any]) -> Any:
        answer = client.post(path, json=body)
        if answer.status_code == 200:
            return answer.json()
        self.failed.append(answer.text)
        return None

    def run_and_kill(self, python: WarmPython, draw: random.Random) -> Counter[str]:
        """Give the command until it ends, and kill it before; returns in which stages it was killed.

        Once in each stage it is killed before it can have come to a verdict: of the first five seconds no conversation
        counts.
        """
        killed = Counter[str]()
        while (stage := self._stage()) is not None:
            command = forked(python, "loop", "run", "--config", self.config, "--json")
            until = time.monotonic() + (draw.uniform(0.1, 2.5) if killed[stage] < MOST_KILLS else 60)
            while time.monotonic() < until and not _has_ended(command):
                if (later := self._stage()) not in (None, stage):
                    stage, until = later, time.monotonic() + draw.uniform(0.1, 2.5)
            command.kill()
            out, err = command.communicate(60)
            assert command.returncode in (0, -signal.SIGKILL), out + err
            killed[stage] += command.returncode != 0
            if draw.random() < 0.3:
                self._let_the_lease_end()
        return killed

    def _stage(self) -> str | None:
        run = self.runs.latest()
        return run.stage

    def _let_the_lease_end(self) -> None:
        """As a server does where nobody has given the command again for three minutes."""
        if (trial := self.store.trial()) is not None:
            self.store.end_overdue_trial(trial)


@pytest.mark.timeout(900)  # some hundred conversations of each side are needed, however long they take
@pytest.mark.parametrize("verdict", CASES)
def test_killed_amid_canary_and_watch_it_comes_to_the_same_verdict_and_no_request_fails(
    tmp_path: Path, start: Callable[..., ServerProcess], warm_python: WarmPython, verdict: str
) -> None:
    """The new model is as good, or worse, or worse as soon as it is live."""
    town, draw = Town(tmp_path, start, verdict), random.Random()
    if verdict == "withdrawn":
        town.ends_badly[town.new] = 0.5
    if verdict == "rolled back":
        switched = Thread(target=_worse_once_live, args=(town,))
        switched.start()
    with town:
        killed = town.run_and_kill(warm_python, draw)
    run = town.runs.latest()
    assert (run.verdict, town.failed) == (verdict, []), run.why
    assert town.store.current() == (town.new if verdict == "switched" else town.live)
    assert not (town.store.root / "TRIAL").exists()
    assert not town.runs.is_at_work()
    assert killed["canary"] > 0
    assert verdict == "withdrawn" or killed["watch"] > 0
    shares = [share for _, share in run.steps["canary"]]
    assert shares == CASES[verdict][0][: len(shares)]
    if verdict == "switched":  # by what it was judged; conversations that came later may look otherwise
        [low] = re.findall(r"\[(.+?),", run.stages["canary"].said)
        assert float(low) >= -MAY_LOSE  # rounded
    else:
        stage, trial = ("watch", town.live) if verdict == "rolled back" else ("canary", town.new)
        found = look(town.store.root, trial, run.steps[stage], time.time(), trial_is_new=stage == "canary")
        assert found.high < 0
    if verdict == "rolled back":
        switched.join()


def _has_ended(command: WarmProcess) -> bool:
    with suppress(TimeoutError):
        command.wait(0.05)
        return True
    return False


def _worse_once_live(town: Town) -> None:
    while town.store.current() != town.new:
        if town.stop.wait(0.05):
            return
    town.ends_badly[town.new] = 0.5
