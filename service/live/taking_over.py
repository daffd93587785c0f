"""Takes over the updates that are appended to the log of what is served."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.model.errors import RankingError


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
        ids: returns the ids that the store holds.

    Attributes:
        current: what is served; None: nothing could be loaded yet.
        refused: why something is not served, by id.
    """

    def __init__(self, ids: Callable[[], list[str]]) -> None:
        self.current: S | None = None
        self.refused: dict[str, str] = {}
        self._ids = ids
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

    def _accept(self, generation: str) -> None:
        with self._refusing:
            self.refused = {each: why for each, why in self.refused.items() if each != generation}

    @abstractmethod
    def _refuse(self, generation: str, error: RankingError) -> None:
        """Note and log why something is not served."""

    @abstractmethod
    def _show_snapshot(self, serving: S) -> None:
        """Show in the metrics what is served."""
