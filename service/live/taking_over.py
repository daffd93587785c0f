"""Takes over the updates that are appended to the log of what is served."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt
from polyrank.model.errors import ModelError, RankingError, Shortage
from polyrank.service.observe.metrics import Metrics

log = logging.getLogger(__name__)


class Updatable(Protocol):
    """What is served, and follows a log."""

    @property
    def generation(self) -> Any:
        """The generation, or what stands for it; it has an id."""

    def caught_up(self) -> Self:
        """Return it with the updates written since; raises GenerationCorrupt where the log is damaged."""


S = TypeVar("S", bound=Updatable)


class TakingOver(ABC, Generic[S]):
    """Holds what is served, and replaces it when the log of its updates has grown.

    Args:
        kind: "generation" or "set", in the log.
        ids: returns the ids that the store holds.
        metrics: counts what is refused.

    Attributes:
        current: what is served; None: nothing could be loaded yet.
        refused: why something is not served, by id; "CURRENT" stands for the pointer itself.
        passing: those of them for which something was lacking, such as a shard: they are tried again.
    """

    def __init__(self, kind: str, ids: Callable[[], list[str]], metrics: Metrics) -> None:
        self.current: S | None = None
        self.refused: dict[str, str] = {}
        self.passing: frozenset[str] = frozenset()
        self._kind, self._ids, self._metrics = kind, ids, metrics
        self._replacing, self._refusing = threading.Lock(), threading.Lock()
        self._unreadable: str | None = None  # whose log `take_over` could not read

    def take_over(self) -> None:
        """Take over the updates that others wrote, without waiting for a switch. Logs damage once."""
        try:
            serving = self.refresh()
        except GenerationCorrupt as error:
            if error.generation not in self.refused:
                self._refuse(error.generation, error)
                self._unreadable = error.generation
            return
        if serving is not None and serving.generation.id == self._unreadable:
            self._accept(serving.generation.id)
            self._unreadable = None

    def refresh(self) -> S | None:
        """Take over the updates written since; returns what is served now.

        Raises:
            GenerationCorrupt: the update log is damaged; what was served stays served.
            OSError: it cannot be read; likewise.
        """
        with self._replacing:
            if self.current is not None:
                try:
                    self.current = self.current.caught_up()
                except GenerationCorrupt:
                    # After a switch elsewhere it may have been removed: the switch here comes next.
                    if self.current.generation.id in self._ids():
                        raise
                self._show_snapshot(self.current)
            return self.current

    def why_not(self, generation: str | None) -> tuple[str | None, bool]:
        """Return why something is not served, None if it is not refused, and whether it is tried again."""
        with self._refusing:  # both of the same moment
            return self.refused.get(generation or ""), generation in self.passing

    def _accept(self, generation: str) -> None:
        with self._refusing:
            self.refused = {each: why for each, why in self.refused.items() if each != generation}
            self.passing -= {generation}

    def _refuse(self, generation: str, error: RankingError) -> None:
        """Note, count and, unless that was just said, log why something is not served, or not yet."""
        passes, fields = isinstance(error, Shortage), {self._kind: generation, "why": str(error)}
        if self.refused.get(generation) != str(error):
            level, what = (logging.WARNING, "is not served yet") if passes else (logging.ERROR, "refused")
            log.log(level, f"{self._kind} {what}", extra={"fields": fields})
        with self._refusing:
            self.refused = {**self.refused, generation: str(error)}
            self.passing = self.passing | {generation} if passes else self.passing - {generation}
        self._metrics.count_refused(_kind_of_refusal(error))

    @abstractmethod
    def _show_snapshot(self, serving: S) -> None:
        """Show in the metrics what is served."""


def _kind_of_refusal(error: RankingError) -> str:
    """Return the label under which what is refused is counted."""
    kinds: tuple[tuple[type[RankingError], str], ...] = (
        (GenerationCorrupt, "corrupt"),
        (FingerprintMismatch, "fingerprint"),
        (ModelError, "model"),
        (Shortage, "shortage"),
    )
    return next((kind for type_, kind in kinds if isinstance(error, type_)), "other")
