"""Removes a conversation from a log of feedback, while servers write it."""

import time
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyrank.index_builder.store.locks import locked
from polyrank.service.errors import UnknownRanking
from polyrank.service.feedback import files
from polyrank.service.feedback.files import Erased
from polyrank.service.feedback.identity import Identity, folder_of
from polyrank.service.feedback.records import RANKING

WAIT_SECONDS: Final = 10.0  # for servers, which look once a second
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Erasing:
    """What was done.

    Attributes:
        rankings: so many of the conversation were found; with them went their events.
        left: so many files still hold some of it, because servers have them open. Nobody counts it any more, and it is
            gone when they close them.
        names: digests and ids by which exported examples know what was erased.
    """

    rankings: int
    left: int
    names: Set[str] = frozenset()


def erase(root: Path, conversation: str) -> Erasing:
    """Remove all rankings of a conversation and their events, from files that are closed and from those of servers.

    `conversation` is its name, as requests have it, or the id of one ranking. Raises FeedbackUnusable where the key of
    the store is damaged, StoreBusy where another process erases, OSError where a file cannot be written.
    """
    folder, at = folder_of(root), time.time()
    if not folder.is_dir():
        return Erasing(0, 0)
    identity = Identity.of(root)
    named = {identity.conversation(conversation)}
    with suppress(UnknownRanking):  # it is a name, not an id
        identity.checked(conversation)
        named.add(conversation)
    with locked(folder / "erasing.lock"):
        rankings = dict(_rankings(folder, named))
        erased = Erased(folder)
        erased.add(folder, {*named, *rankings}, at)
        until, left = time.monotonic() + WAIT_SECONDS, files.names(folder)
        while left := [name for name in left if not _is_clean(folder, name, erased)]:
            if time.monotonic() > until:
                break
            time.sleep(_AGAIN_SECONDS)
    return Erasing(len(rankings), len(left), {*named, *rankings, *filter(None, rankings.values())})


def _rankings(folder: Path, named: set[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the ids of the rankings that have one of these names, each with the digest of its conversation."""
    for name in files.names(folder):
        for line in files.lines(folder, name):
            if line is not None and line.get("kind") == RANKING:
                given, conversation = line.get("id"), line.get("conversation")
                if isinstance(given, str) and isinstance(conversation, str | None) and named & {given, conversation}:
                    yield given, conversation


def _is_clean(folder: Path, name: str, erased: Erased) -> bool:
    """Take what was erased out of a file; returns whether none of it is left there."""
    if not any(line is not None and erased.holds(line) for line in files.lines(folder, name)):
        return True
    if not files.closed(folder, name):
        return False
    with suppress(FileNotFoundError):  # a server removed it, because it is too old
        files.rewrite(folder, name, erased)
    return True
