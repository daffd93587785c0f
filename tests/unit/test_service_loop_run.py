"""The stages of a run that take days: canary, switch and watch, by what the store and the log say."""

import fcntl
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread, Timer

import pytest
from feedback_logs import write_log
from full_disk import fill_disk

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pointer import LEASE_ENDED, Pointer, Trial, Withdrawn
from polyrank.service.errors import LoopBusy, LoopFailed
from polyrank.service.feedback.records import Event, Kind, Ranking, Use
from polyrank.service.loop.config import LoopConfig
from polyrank.service.loop.run import _Anew, _Stages, abort, run_loop
from polyrank.service.loop.state import Run, Runs, StageDone
from polyrank.service.loop.trial import BAD, TrialLease

BEFORE = ("collect", "train", "gate", "build")


@dataclass
class Loop:
    """A store whose run has come to the canary; the newest generation is to replace the oldest."""

    store: GenerationStore
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live, *_, self.new = self.store.ids()
        self.store.activate(self.live)
        self.runs = Runs(self.store.root)
        self.fingerprint = self.store.active().model.fingerprint
        self.run = self.runs.begin(self.live, self.fingerprint)
        for name in BEFORE:
            self.run.stages[name] = StageDone({}, {}, "done")
        self.run.stages["build"].outputs.update(generation=self.new, fingerprint=self.fingerprint)
        self.runs.write(self.run)

    def began(self, stage: str, *shares: float, hours: float = 1.0) -> float:
        """Let a stage have begun so long ago, with these shares a minute after each other; returns when."""
        at = time.time() - hours * 3600
        self.run.steps[stage] = [(at + 60 * place, share) for place, share in enumerate(shares)]
        self.runs.write(self.run)
        return at

    def reached(self, stage: str) -> None:
        """Let the stages before this one be done."""
        for name in ("canary", "switch")[: ("canary", "switch", "watch").index(stage)]:
            self.run.stages[name] = StageDone({}, {}, "done")
        self.runs.write(self.run)
        if stage == "watch":
            self.store.activate(self.new)

    def goes_on(self, **settings: object) -> Run:
        """Run it to its end."""
        given = {"look_seconds": 0.1, "settle_minutes": 0, "watch_hours": 0, "step_hours": 0, **settings}
        return run_loop(LoopConfig(store=self.store.root, **given), self.said.append)


@pytest.fixture
def loop(store: GenerationStore) -> Loop:
    """A run before its canary."""
    return Loop(store)


def conversations(of: str, at: float, count: int, share: float, trial: float, live: float) -> list[Use]:
    """Conversations in a few seconds soon after `at`, with generation `of` on trial; nobody says `resolved`.

    `trial` and `live` are the shares that end well.
    """
    draw, told, found = random.Random(3), sorted(BAD), list[Use]()
    for number in range(count):
        on_trial = draw.random() < share
        bad = [] if draw.random() < (trial if on_trial else live) else [draw.choice(told)]
        found.append(_use(number, at + 10 + number * 1e-3, of if on_trial else "live", on_trial, *bad))
    return found


def _use(number: int, at: float, generation: str, on_trial: bool, *kinds: Kind) -> Use:
    ranking = Ranking(
        id=f"r{number}", at=at, generation=generation, revision=0, fingerprint="f", shown=(),
        side="trial" if on_trial else "live", conversation=f"c{number}",
    )  # fmt: skip
    return Use(ranking, tuple(Event(id=f"{kind}", at=at, ranking=ranking.id, kind=kind) for kind in kinds))


def meanwhile(loop: Loop, act: Callable[[], object], share: float = 0.0) -> Thread:
    """Do something as soon as there is a trial with this share or more."""

    def wait() -> None:
        until = time.monotonic() + 30
        while ((trial := loop.store.trial()) is None or trial.share < share) and time.monotonic() < until:
            time.sleep(0.01)
        act()

    thread = Thread(target=wait)
    thread.start()
    return thread


def amid_the_switch(loop: Loop, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something while the new generation is verified, before it is active."""
    verify = GenerationStore.verify

    def slow(store: GenerationStore, generation: str) -> object:
        if store.current() == loop.live:
            act()
        return verify(store, generation)

    monkeypatch.setattr(GenerationStore, "verify", slow)


def test_an_equal_model_is_switched_to_at_the_last_step(loop: Loop) -> None:
    at = loop.began("canary", 0.5)
    write_log(loop.store.root, conversations(loop.new, at, 4000, 0.5, trial=0.97, live=0.97))
    run = loop.goes_on(canary_shares=(0.5,))
    assert (run.verdict, loop.store.current(), loop.store.history()) == ("switched", loop.new, [loop.live])
    assert loop.store.trial() is None
    assert list(run.stages) == [*BEFORE, "canary", "switch", "watch"]
    assert "over 20" in run.stages["canary"].said


def test_a_worse_model_is_withdrawn_at_the_first_step(loop: Loop) -> None:
    at = loop.began("canary", 0.2)
    write_log(loop.store.root, conversations(loop.new, at, 2000, 0.2, trial=0.6, live=0.9))
    run = loop.goes_on()
    assert (run.verdict, loop.store.current(), loop.store.trial()) == ("withdrawn", loop.live, None)
    assert run.why.startswith("conversations end worse: -0.2")
    assert loop.runs.latest() == run


@pytest.mark.slow
def test_steps_wait_for_their_time_and_for_conversations(loop: Loop) -> None:
    """With enough conversations the share rises, step by step; an equal model stays at the last one."""
    at = loop.began("canary", 0.05)
    write_log(loop.store.root, conversations(loop.new, at, 1100, 0.05, trial=0.9, live=0.9))
    thread = meanwhile(loop, lambda: abort(loop.store.root, 30), share=0.5)
    run = loop.goes_on(canary_shares=(0.05, 0.2, 0.5))
    thread.join()
    assert [share for _, share in run.steps["canary"]] == [0.05, 0.2, 0.5]
    assert (run.verdict, loop.store.current(), loop.store.trial()) == ("aborted", loop.live, None)
    shares = [f"canary: {share} of the conversations" for share in ("20%", "50%")]
    assert loop.said == [f"going on with run {run.id}", *shares]


@pytest.mark.slow
def test_no_share_rises_over_conversations_that_are_too_few(loop: Loop) -> None:
    at = loop.began("canary", 0.05)
    write_log(loop.store.root, conversations(loop.new, at, 900, 0.05, trial=0.9, live=0.9))
    run = loop.goes_on(canary_hours=1)
    assert (run.verdict, len(run.steps["canary"])) == ("undecided", 1)
    assert run.why.startswith("after 1 h: ")
    assert run.why.endswith("are too few yet")


@pytest.mark.slow
def test_without_feedback_nothing_is_known(loop: Loop) -> None:
    run = loop.goes_on(canary_hours=0)
    assert run.verdict == "undecided"
    assert run.why == "after 0 h: no conversation yet; servers must record feedback, and GET /index must show the trial"


@pytest.mark.slow
def test_a_disk_that_is_full_at_a_look_ends_no_canary(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.began("canary", 0.05, hours=0)
    fill_disk(monkeypatch, loop.runs.path(loop.run.id) / "state.json")
    room = Timer(0.7, monkeypatch.undo)
    room.start()
    run = loop.goes_on(canary_hours=2 / 3600)
    room.join()
    assert run.verdict == "undecided"
    assert loop.runs.latest() == run


@pytest.mark.slow
def test_off_leaves_the_gate_alone(loop: Loop) -> None:
    run = loop.goes_on(canary="off", watch_hours=1)
    assert (run.verdict, loop.store.current(), run.steps) == ("switched", loop.new, {})


@pytest.mark.slow
def test_what_a_server_has_withdrawn_is_not_asked_again(loop: Loop) -> None:
    at = loop.began("canary", 0.05)
    loop.store.begin_trial(loop.new, 0.05, time.time())
    loop.store.withdraw_trial(loop.new, "5 answers in a row had to be replaced")
    run = loop.goes_on()
    assert (run.verdict, run.why, at) == ("withdrawn", "5 answers in a row had to be replaced", at)
    assert loop.store.trial() is None


def test_a_lease_that_a_server_ended_whose_clock_is_behind_is_taken_again(loop: Loop) -> None:
    lease = TrialLease(loop.store, loop.new)
    lease.begin(0.05)
    loop.store._pointer.withdraw(Withdrawn(loop.new, time.time() - 1800, LEASE_ENDED))
    assert lease.why_over(since=time.time() - 60) is None
    trial = loop.store.trial()
    assert (trial.generation, trial.share) == (loop.new, 0.05)


@pytest.mark.slow
def test_after_a_lease_that_ended_somebody_else_may_still_end_the_trial(loop: Loop) -> None:
    def act() -> None:
        loop.store._pointer.withdraw(Withdrawn(loop.new, time.time(), LEASE_ENDED))
        meanwhile(loop, loop.store.end_trial).join()

    thread = meanwhile(loop, act)
    run = loop.goes_on(canary_hours=10 / 3600)
    thread.join()
    assert (run.verdict, run.why) == ("withdrawn", "somebody else has ended its trial")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verdict", "why"), [
    ("end_trial", "withdrawn", "somebody else has ended its trial"),
    ("activate", "overtaken", "somebody else has switched"),
    ("abort", "aborted", "somebody has asked for it, in stage canary"),
])  # fmt: skip
def test_what_others_do_ends_the_canary(loop: Loop, name: str, verdict: str, why: str) -> None:
    other = loop.store.ids()[1]
    act = {
        "end_trial": loop.store.end_trial,
        "activate": lambda: loop.store.activate(other),
        "abort": lambda: abort(loop.store.root, 30),
    }[name]
    thread = meanwhile(loop, act)
    run = loop.goes_on(look_seconds=10)
    thread.join()
    assert run.verdict == verdict
    assert run.why.endswith(why)
    assert (loop.store.trial(), loop.store.current()) == (None, other if name == "activate" else loop.live)


@pytest.mark.slow
def test_a_lease_is_held_while_the_loop_runs_and_only_one_runs(loop: Loop) -> None:
    seen: list[Trial | None] = []

    def look() -> None:
        seen.append(loop.store.trial())
        assert not data.exists()
        with pytest.raises(LoopBusy, match="another process runs the loop of this store: process"):
            loop.goes_on()
        abort(loop.store.root, 30)

    data = loop.runs.path(loop.run.id) / "data"  # a kill came as the build was recorded
    data.mkdir()
    thread = meanwhile(loop, look)
    assert loop.goes_on().verdict == "aborted"
    thread.join()
    [trial] = seen
    assert trial.renewed is not None
    assert (trial.generation, trial.share, 0 <= time.time() - trial.renewed < 30) == (loop.new, 0.05, True)


def test_abort_where_nobody_is_at_work(loop: Loop) -> None:
    loop.store.begin_trial(loop.new, 0.05, time.time())
    texts = loop.runs.path(loop.run.id) / ".hard.jsonl.0123456789abcdef.tmp"
    texts.touch()  # of a stage that was killed
    run = abort(loop.store.root, 0)
    assert (run.verdict, loop.store.trial(), texts.exists()) == ("aborted", None, False)
    assert abort(loop.store.root, 0) is None


def test_texts_stay_until_the_verdict_is_written(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leads back to the stage that gave it, which needs them. The next run removes what is left."""
    data = loop.runs.path(loop.run.id) / "data"
    data.mkdir()
    with monkeypatch.context() as full:
        fill_disk(full, loop.runs.path(loop.run.id) / "state.json")
        with pytest.raises(OSError, match="No space left"):
            abort(loop.store.root, 0)
    assert data.exists()
    loop.runs.begin(loop.live, loop.fingerprint)
    assert not data.exists()


@pytest.mark.parametrize(("stage", "is_judged"), [("canary", False), ("switch", True), ("watch", True)])
def test_what_was_learnt_from_counts_where_an_abort_leaves_the_new_model(
    loop: Loop, stage: str, is_judged: bool
) -> None:
    loop.reached(stage)
    if stage == "switch":  # which a kill kept from being recorded
        loop.store.activate(loop.new)
    (loop.runs.path(loop.run.id) / "examples.npy").touch()
    assert abort(loop.store.root, 0) is not None
    assert [each.verdict for each in loop.runs.judged()] == ["aborted"] * is_judged


@pytest.mark.slow
def test_a_switch_that_a_kill_kept_from_being_recorded_is_found(loop: Loop) -> None:
    loop.reached("switch")
    loop.store.activate(loop.new)
    assert loop.goes_on().verdict == "switched"


def test_somebody_who_switches_at_the_last_moment_is_not_overruled(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = loop.store.ids()[1]
    loop.reached("switch")
    amid_the_switch(loop, monkeypatch, lambda: loop.store.make_active(loop.store.manifest(other)))
    assert (loop.goes_on().verdict, loop.store.current()) == ("overtaken", other)


def test_an_abort_during_the_switch_comes_too_late_for_it(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new model is active then, so what it has learnt from counts."""
    loop.reached("switch")
    (loop.runs.path(loop.run.id) / "examples.npy").touch()
    amid_the_switch(loop, monkeypatch, loop.runs.abort_file(loop.run.id).touch)
    run = loop.goes_on(watch_hours=1)
    assert (run.verdict, run.why) == ("aborted", "somebody has asked for it, in stage watch")
    assert (loop.store.current(), loop.store.trial()) == (loop.new, None)
    assert [each.id for each in loop.runs.judged()] == [run.id]


@pytest.mark.slow
def test_a_compaction_at_the_last_moment_is_no_switch(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = loop.store.manifest(loop.store.ids()[1])
    loop.reached("switch")
    amid_the_switch(loop, monkeypatch, lambda: loop.store.make_copy_active(loop.live, copy))
    run = loop.goes_on()
    assert (run.verdict, run.live, loop.store.current()) == ("switched", copy.id, loop.new)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["canary", "watch"])
def test_a_compaction_is_no_switch(loop: Loop, stage: str) -> None:
    """Servers compact by themselves: what comes of the live generation takes its place in the run."""
    loop.reached(stage)
    copy, old = loop.store.manifest(loop.store.ids()[2]), loop.new if stage == "watch" else loop.live

    def act() -> None:
        loop.store.make_copy_active(old, copy)
        if stage == "watch":
            until = time.monotonic() + 30
            while loop.runs.read(loop.run.id).new != copy.id and time.monotonic() < until:
                time.sleep(0.01)
            loop.store.end_trial()

    thread = meanwhile(loop, act)
    at = loop.began(stage, 0.5, hours=0)
    write_log(
        loop.store.root,
        conversations(loop.live if stage == "watch" else loop.new, at, 4000, 0.5, trial=0.97, live=0.97),
    )
    run = loop.goes_on(canary_shares=(0.5,), watch_hours=1 if stage == "watch" else 0)
    thread.join()
    assert run.verdict == "switched"
    assert (run.live, run.new) == ((loop.live, copy.id) if stage == "watch" else (copy.id, loop.new))
    assert (loop.store.current(), loop.store.history()) == (run.new, [run.live])


@pytest.mark.slow
def test_the_watch_keeps_a_good_model(loop: Loop) -> None:
    loop.reached("watch")
    at = loop.began("watch", 0.05)
    write_log(loop.store.root, conversations(loop.live, at, 1500, 0.05, trial=0.9, live=0.9))
    run = loop.goes_on(watch_hours=1)
    assert (run.verdict, loop.store.current(), loop.store.trial()) == ("switched", loop.new, None)


def test_the_watch_goes_back_from_a_bad_one(loop: Loop) -> None:
    loop.reached("watch")
    at = loop.began("watch", 0.05)
    write_log(loop.store.root, conversations(loop.live, at, 3000, 0.05, trial=0.95, live=0.4))
    run = loop.goes_on(watch_hours=48)
    assert (run.verdict, loop.store.current(), loop.store.trial()) == ("rolled back", loop.live, None)
    assert run.why.startswith("conversations end worse: -0.5")


def test_a_kill_after_it_has_gone_back_leaves_no_trial(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.reached("watch")
    loop.store.begin_trial(loop.live, 0.05, time.time())
    with monkeypatch.context() as killed:
        killed.setattr(Pointer, "set_trial", lambda *_: None)
        loop.store.activate(loop.live)
    run = loop.goes_on(watch_hours=1)
    assert (run.verdict, loop.store.current()) == ("rolled back", loop.live)
    assert not (loop.store.root / "TRIAL").exists()


@pytest.mark.slow
@pytest.mark.parametrize("back", [True, False])
def test_the_watch_sees_what_others_make_active(loop: Loop, back: bool) -> None:
    loop.reached("watch")
    other = loop.live if back else loop.store.ids()[1]
    thread = meanwhile(loop, lambda: loop.store.activate(other))
    run = loop.goes_on(watch_hours=1)
    thread.join()
    assert (run.verdict, loop.store.current()) == ("rolled back" if back else "switched", other)


@pytest.mark.slow
def test_the_watch_ends_early_where_its_trial_does(loop: Loop) -> None:
    loop.reached("watch")
    thread = meanwhile(loop, loop.store.end_trial)
    run = loop.goes_on(watch_hours=1)
    thread.join()
    assert (run.verdict, loop.store.current()) == ("switched", loop.new)
    assert run.stages["watch"].said.startswith("ended early, somebody else has ended its trial: ")


@pytest.mark.slow
def test_an_old_generation_that_was_collected_is_watched_no_more(loop: Loop) -> None:
    """A loop that was killed before the watch holds no trial, so a collection may remove it."""
    loop.reached("watch")
    assert loop.live in loop.store.gc(keep=1)
    run = loop.goes_on(watch_hours=1)
    assert (run.verdict, loop.store.current()) == ("switched", loop.new)
    assert run.stages["watch"].said.startswith("ended early, no generation ")


def test_what_was_erased_is_collected_no_more(loop: Loop) -> None:
    """Until its model is built: later the run has no texts any more."""
    folder = loop.runs.path(loop.run.id)
    (folder / "data").mkdir()
    (folder / "data" / "labels.jsonl").write_text('{"dialogue":"c0"}\n{"dialogue":"c1"}\n')
    (folder / "model").mkdir()
    (folder / "fitted").mkdir()
    assert not loop.runs.leave_out({"c1"})
    assert not (folder / "data").exists(), "a kill came as the build was recorded"
    (folder / "data").mkdir()
    (folder / "data" / "labels.jsonl").write_text('{"dialogue":"c0"}\n{"dialogue":"c1"}\n')
    for stage in ("build", "gate", "train"):
        del loop.run.stages[stage]
    loop.runs.write(loop.run)
    assert not loop.runs.leave_out({"c2", "other"})
    assert (folder / "data").exists()
    assert loop.runs.leave_out({"c2", "c1"})
    assert loop.runs.read(loop.run.id).stage == "collect"
    assert [path.name for path in folder.iterdir()] == ["state.json"]
    (folder / "data").mkdir()  # of a collection that was killed
    assert not loop.runs.leave_out({"c3"}), "nothing was collected"
    assert [path.name for path in folder.iterdir()] == ["state.json"]
    with loop.runs.alone():
        assert loop.runs.leave_out({"c3"}), "whoever is at work may have read it already"
    abort(loop.store.root, 0)
    (folder / "data").mkdir()  # a kill came as the verdict was written
    assert not loop.runs.leave_out({"c1"})
    assert not (folder / "data").exists()


def test_what_was_erased_as_a_stage_ended_is_not_built(loop: Loop) -> None:
    for stage in ("build", "gate", "train"):
        del loop.run.stages[stage]
    stages = _Stages(LoopConfig(store=loop.store.root), loop.runs, loop.store, loop.run, loop.said.append)
    erasing = f"open({str(loop.runs.path(loop.run.id) / 'anew')!r}, 'w')"
    with pytest.raises(_Anew):
        stages._child("build", "timeit", "-n", "1", "-r", "1", erasing)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["abort", "run"])
def test_a_stage_that_a_kill_has_left_ends_with_its_run(loop: Loop, who: str) -> None:
    """It would write texts of conversations after they were removed."""
    data = loop.runs.path(loop.run.id) / "data"
    data.mkdir()
    with loop.runs.stage_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writes = f"import time\nwhile True: time.sleep(0.1); open({str(data / 'train.jsonl')!r}, 'w')"
        left = subprocess.Popen([sys.executable, "-c", writes], pass_fds=[lock.fileno()])
        loop.runs.name_stage(lock.fileno(), left.pid)
    if who == "run":
        loop.runs.abort_file(loop.run.id).touch()
        assert loop.goes_on().verdict == "aborted"
    else:
        run = abort(loop.store.root, 5)
        assert run.verdict == "aborted"
    assert left.wait(5) == -signal.SIGTERM
    assert not data.exists()
    assert not loop.runs.is_at_work()


@pytest.mark.slow
def test_a_stage_that_a_kill_has_left_is_waited_for(loop: Loop) -> None:
    with loop.runs.stage_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = Thread(target=lambda: loop.goes_on(canary="off"))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert loop.runs.is_at_work()
    thread.join(10)
    assert loop.said[1] == "a stage goes on that a killed command has left; waiting for its end"
    assert loop.store.current() == loop.new


@pytest.mark.slow
def test_files_that_were_changed_are_not_gone_on_from(loop: Loop) -> None:
    loop.run.stages = {"collect": StageDone({}, {"data/train.jsonl": "0" * 64}, "done")}
    loop.runs.write(loop.run)
    with pytest.raises(LoopFailed, match=r"train\.jsonl is not what stage collect has left; end the run with"):
        loop.goes_on()


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "{}", "[]", '{"id": 3}', "\x00"])
def test_a_damaged_state_is_named(loop: Loop, content: str) -> None:
    path = loop.runs.path(loop.run.id) / "state.json"
    path.write_text(content)
    with pytest.raises(LoopFailed, match=f"{path} is damaged; remove {path.parent}"):
        loop.goes_on()


@pytest.mark.slow
def test_a_run_whose_state_was_never_written_is_none(loop: Loop) -> None:
    loop.runs.path("29990101T000000000000-00000000").mkdir()
    assert loop.runs.latest() == loop.run
