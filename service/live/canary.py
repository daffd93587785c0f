"""The share of conversations that the generation on trial answers, and when it answers none any more."""

import time
from dataclasses import dataclass
from typing import Final

from polyrank.index_builder.store.pointer import Trial

# So many answers in a row, or this share of at least so many, that the live generation had to give: the trial ends.
MOST_IN_A_ROW, MOST_SHARE, LEAST_ASKED = 5, 0.01, 300
# It answers only while it has the updates that the live generation had so many seconds ago.
FRESH_SECONDS = 10.0
# Nobody's fault: the server was short of something, or a candidate came in an update that the trial has a second later.
NO_FAULT: Final = frozenset({"overloaded", "shortage", "unknown-candidates"})


@dataclass(eq=False)
class Canary:
    """A generation on trial, in this process. Any thread may use it; rankings are counted on one."""

    trial: Trial
    fresh_at: float | None = None  # when it last had all updates, on the monotonic clock; None: not yet
    answers: int = 0  # answers asked of it for its share
    replaced: int = 0  # those of them that the live generation gave, for what is its fault
    withdrawn: str | None = None  # why it is asked no more; None: it is
    _in_a_row: int = 0
    _last: str = ""

    @property
    def share(self) -> float:
        """Of the conversations, those that it answers now."""
        is_fresh = self.fresh_at is not None and time.monotonic() < self.fresh_at + FRESH_SECONDS
        return self.trial.share if is_fresh and self.withdrawn is None else 0.0

    def count(self, why: str | None, is_fault: bool = True) -> None:
        """Count an answer asked of it; `why` the live generation gave it instead, and whether that is this one's fault.

        None: it gave the answer itself.
        """
        self.answers += 1
        if why in NO_FAULT or not is_fault:
            return
        if why is None:
            self._in_a_row = 0
        else:
            self._in_a_row += 1
            self.replaced += 1
            self._last = why
        if self._in_a_row >= MOST_IN_A_ROW:
            self.withdrawn = f"{self._in_a_row} answers in a row had to be replaced; the last one: {self._last}"
        elif self.answers >= LEAST_ASKED and self.replaced >= MOST_SHARE * self.answers:
            self.withdrawn = f"{self.replaced} of {self.answers} answers had to be replaced; the last one: {self._last}"
