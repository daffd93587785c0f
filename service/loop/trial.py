"""A trial as the loop sees it: how the conversations of both sides ended, and the lease that keeps it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import numpy as np

from polyrank.index_builder.convert.rows import table_on_disk
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pointer import LEASE_ENDED, Trial, Withdrawn
from polyrank.model.errors import RankingError
from polyrank.service.feedback.reading import uses
from polyrank.service.feedback.records import Kind, Ranking
from polyrank.service.loop.statistics import Effect, effect

BAD: Final[frozenset[Kind]] = frozenset({"handed_over", "down", "none_good"})
RENEW_SECONDS = 30.0  # of the lease, which lasts six times as long
_CLOCKS_DIFFER_SECONDS = 3600.0  # at most, of file systems and hosts
_FOLLOWED_SECONDS = 5.0  # after a step servers may still take the share before it, so who began then is not counted

Steps = Sequence[tuple[float, float]]
"""Since when, in seconds since the epoch, which share of the conversations is on trial."""


# A conversation is on the side of its first ranking.
_CONVERSATIONS = """
CREATE TABLE conversations (name TEXT UNIQUE, began REAL, on_trial INTEGER, bad INTEGER, resolved INTEGER)"""
_COUNT = """
INSERT INTO conversations VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET
    on_trial = CASE WHEN excluded.began < began THEN excluded.on_trial ELSE on_trial END,
    began = min(began, excluded.began), bad = max(bad, excluded.bad), resolved = max(resolved, excluded.resolved)"""


def look(store: Path, trial: str, steps: Steps, settled_before: float, *, trial_is_new: bool = True) -> Effect:
    """Compare how conversations ended that began since the first step.

    A conversation is on the side of its first ranking, whatever answered later. It ended badly if anybody reported one
    of BAD, and well if it was resolved. The others, of which nobody said how they ended, ended well; but if there are
    fewer of them than of those that were resolved, silence says nothing, and they are not counted.

    `store` is the directory of the store, `steps` are those of the generation `trial`. Conversations that began after
    `settled_before` are not counted yet. The effect is that of the new model: `trial_is_new` says which one that is.
    """
    first = steps[0][0]
    with table_on_disk() as table:  # memory does not grow with the log
        table.execute("PRAGMA journal_mode = OFF")
        table.execute(_CONVERSATIONS)
        for use in uses(store, since=first - _CLOCKS_DIFFER_SECONDS):
            ranking = use.ranking
            if ranking.at >= first and _is_of(trial, ranking):
                kinds = {event.kind for event in use.events}
                name, on_trial = ranking.conversation or ranking.id, ranking.side == "trial"
                table.execute(_COUNT, (name, ranking.at, on_trial, bool(kinds & BAD), "resolved" in kinds))
        rows = table.execute(
            "SELECT began, on_trial, bad, resolved FROM conversations WHERE began < ? ORDER BY began, rowid",
            (settled_before,),
        )
        facts = np.fromiter(chain.from_iterable(rows), float).reshape(-1, 4)
    began = facts[:, 0]
    since, share_of = (np.array(each, float) for each in zip(*steps, strict=True))
    step = np.searchsorted(since, began, "right") - 1
    counted = began >= since[step] + _FOLLOWED_SECONDS
    shares = share_of[step][counted]
    sides, bad, resolved = facts[counted, 1:].astype(np.bool_).T
    is_known = bad | resolved
    if resolved.sum() > len(is_known) - is_known.sum():
        sides, shares, bad = sides[is_known], shares[is_known], bad[is_known]
    outcomes = (~bad).astype(float)
    return effect(sides, shares, outcomes) if trial_is_new else effect(~sides, 1 - shares, outcomes)


def _is_of(trial: str, ranking: Ranking) -> bool:
    """Whether the share of this trial decided who answered; a server may still have followed another one."""
    if ranking.side == "trial":
        return ranking.generation == trial or ranking.replaced is not None
    return ranking.side == "live" and ranking.generation != trial


class TrialLease:
    """Keeps a generation on trial with a share; when this process dies, servers end the trial."""

    def __init__(self, store: GenerationStore, generation: str) -> None:
        self._store, self._generation = store, generation
        self._share, self._changes, self._ended = 0.0, Lock(), Event()
        self._ended_before: Withdrawn | None = None  # what servers had ended before the last `begin`

    def begin(self, share: float) -> None:
        """Put the generation on trial with this share, or give it another one."""
        with self._changes:
            self._share, self._ended_before = share, self._store.withdrawn()
            self._store.begin_trial(self._generation, share, time.time())

    def why_over(self, since: float) -> str | None:
        """Why the trial, which began at `since`, is over although nobody here has ended it; None: it is not."""
        last = self._store.withdrawn()
        if last is not None and (last.generation != self._generation or last.at < since - _CLOCKS_DIFFER_SECONDS):
            last = None  # of another trial
        if last is not None and last.why != LEASE_ENDED:
            return last.why
        if self._is_on_trial():
            return None
        if last is not None and last != self._ended_before:  # this process was stopped for a while
            self.begin(self._share)
            return None
        return "somebody else has ended its trial"

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease in the background for the block."""
        renewer = Thread(target=self._renew_on_time, name="lease of the trial", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            self._ended.set()
            renewer.join()

    def end(self) -> None:
        """End the trial, if it is that of this generation."""
        self._store.end_trial(self._generation)

    def _is_on_trial(self) -> bool:
        trial = self._store.trial()
        return trial is not None and trial.generation == self._generation

    def _renew_on_time(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            # What fails is tried again, and a trial that was ended stays so: who holds the lease will see it.
            with suppress(RankingError, OSError), self._changes:
                self._store.renew_trial(Trial(self._generation, self._share, time.time()))
