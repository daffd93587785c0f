"""What a route tells of the request that it answered: for the request's log line and its span."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Account:
    """Everything is optional: not every route ranks. A route puts its own into `request.state.account`."""

    generation: str | None = None
    degraded: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """What is known, for a log line: the stages in milliseconds."""
        known: dict[str, Any] = {}
        if self.generation is not None:
            known |= {"generation": self.generation, "degraded": list(self.degraded)}
        if self.seconds:
            known["stages_ms"] = {stage: round(value * 1000, 3) for stage, value in self.seconds.items()}
        return known
