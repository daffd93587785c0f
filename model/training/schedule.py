"""The learning rate over a run: warm-up, then a schedule (Humeau et al. 5.1: multiplied by 0.4 on a plateau)."""

import math
from typing import Any, Literal

Schedule = Literal["plateau", "linear", "cosine", "constant", "inverse-sqrt"]

PLATEAU_FACTOR = 0.4


class LearningRate:
    """The factor on the base learning rate at each step. It first rises linearly from 0 to 1, the warm-up.

    plateau: multiplied by 0.4 after each look at which the selection loss has not improved. linear, cosine: falls to 0
    at the last step. constant: stays. inverse-sqrt: falls with the root of the steps, from the warm-up's last one on
    (Humeau et al. 4.1).
    """

    def __init__(self, schedule: Schedule, warmup_steps: int, steps: int) -> None:
        self._schedule = schedule
        self._warmup = warmup_steps
        self._steps = steps
        self._reduced = 1.0
        self._best = math.inf

    def factor(self, step: int) -> float:
        """Factor for the step with this number, from 0.

        >>> rate = LearningRate("linear", warmup_steps=2, steps=6)
        >>> [rate.factor(step) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        if step < self._warmup:
            return (step + 1) / self._warmup * self._reduced
        if self._schedule == "inverse-sqrt":
            return math.sqrt(max(1, self._warmup) / max(1, step))
        done = min(1.0, (step - self._warmup) / max(1, self._steps - self._warmup))
        if self._schedule == "linear":
            return 1.0 - done
        if self._schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        return self._reduced

    def observe(self, step: int, selection_loss: float) -> None:
        """Take the selection loss after that many steps; only `plateau` uses it, and only after the warm-up."""
        if self._schedule == "plateau" and step > self._warmup and selection_loss >= self._best:
            self._reduced *= PLATEAU_FACTOR
        self._best = min(self._best, selection_loss)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"reduced": self._reduced, "best": self._best}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._reduced, self._best = state["reduced"], state["best"]
