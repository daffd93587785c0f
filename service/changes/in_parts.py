"""What is not done with a pool that is cut into parts."""

from typing import NoReturn

from polyrank.service.errors import NotConfigured


def not_in_parts(what: str, instead: str) -> NotConfigured:
    """Return the error that says what is not done, and what to do instead."""
    return NotConfigured(f"{what} is not possible where the pool is cut into parts; {instead}")


class NoTrials:
    """In the place of `Trials`."""

    current = None
    bytes = 0

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def require(self) -> NoReturn:
        """Raise NotConfigured."""
        raise _no_trial()

    def begin(self, generation: str) -> NoReturn:
        """Raise NotConfigured."""
        raise _no_trial()

    def end(self) -> None:
        """There is none to end."""

    def follow_if_possible(self) -> None:
        """There is none to follow."""


def _no_trial() -> NotConfigured:
    return not_in_parts("a trial", "serve a copy of the store by a second server, and compare their answers")
