"""How long a run will still take: its steps, its looks at the selection slice, and what is fitted after them."""

from collections.abc import Callable, Mapping

_RECENT = 100  # steps whose mean tells how long the next ones take; no two are of one length
_FIRST = 1  # steps that tell nothing: rows are read ahead, and memory is new


class Forecast:
    """Learns from the seconds of steps and looks how many are left."""

    def __init__(self, steps: int, look_every: int, after: Callable[[float], float]) -> None:
        """Begin with a run of so many steps; `after` tells, by `look_seconds`, what follows the last look takes."""
        self.look_seconds = 0.0  # what the latest look took; all read the same examples
        self._steps, self._look_every, self._after = steps, look_every, after
        self._seen, self._step_seconds = 0, 0.0

    def step_took(self, seconds: float) -> None:
        self._seen += 1
        count = min(self._seen - _FIRST, _RECENT)
        if count > 0:
            self._step_seconds += (seconds - self._step_seconds) / count

    def figures(self, step: int) -> Mapping[str, float]:
        """Return the seconds left after that step, before its look if it has one; nothing before the third one seen."""
        if self._seen < _FIRST + 2:
            return {}
        looks = -(-self._steps // self._look_every) - (step - 1) // self._look_every
        left = (self._steps - step) * self._step_seconds + looks * self.look_seconds + self._after(self.look_seconds)
        return {"seconds_left": left}
