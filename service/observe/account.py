"""Facts about an answered request that its route knows: for the log line and the span."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Account:
    """What a route puts into `request.state.account`; everything is optional, because not every route ranks.

    `refused` counts the rankings of a batch that were refused, by type of problem.
    """

    generation: str | None = None
    degraded: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return what is known, for a log line: the stages in milliseconds."""
        known: dict[str, Any] = {}
        if self.generation is not None:
            known |= {"generation": self.generation, "degraded": list(self.degraded)}
        if self.seconds:
            known["stages_ms"] = {stage: round(value * 1000, 3) for stage, value in self.seconds.items()}
        if self.refused:
            known["refused"] = dict(self.refused)
        return known
