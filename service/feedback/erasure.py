"""Removes conversations from a log of feedback, while servers write it."""

import time
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyrank.index_builder.store.locks import locked
from polyrank.service.errors import EraseUnfinished, UnknownRanking
from polyrank.service.feedback import files
from polyrank.service.feedback.files import Erased
from polyrank.service.feedback.identity import Identity, folder_of, origin_of
from polyrank.service.feedback.records import RANKING

WAIT_SECONDS: Final = 10.0  # for servers, which look once a second
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Erasing:
    """What was done."""

    rankings: int  # so many of the conversations were in the files, and are no more; with them went their events
    # So many files still hold some of it, because servers have them open. Nobody counts it any more, and it is gone
    # when they close them.
    left: int
    names: Set[str] = frozenset()  # digests and ids by which exported examples know what was erased
    unfinished: str | None = None  # what is not done, and what to do; None: all is
    recorded: Set[str] = frozenset()  # those of the names asked for of which the files held a ranking


def erase(root: Path, conversations: Sequence[str]) -> Erasing:
    """Remove all rankings of conversations and their events, from files that are closed and from those of servers.

    A conversation is given by its name, as requests have it, or by the id of one ranking. What waits to be written in a
    server is dropped there. Raises FeedbackUnusable where the key of the store is damaged, StoreBusy where another
    process takes lines out of the log, EraseUnfinished where nothing can be written.
    """
    folder, at = folder_of(root), time.time()
    if not folder.is_dir():
        return Erasing(0, 0)
    identity = Identity.of(root)
    erased_names, example_names, name_of = set[str](), set[str](), dict[str, str]()
    for name in conversations:
        erased_names.add(identity.conversation(name))
        name_of[identity.conversation(name)] = name_of[name] = name
        with suppress(UnknownRanking):  # it is a name, not an id
            origin = identity.checked(name)
            erased_names.add(name)
            example_names.add(origin.conversation or name)
    with locked(folder / files.REWRITING_LOCK):
        erased, named = Erased(folder), Erased(folder)
        named.times = dict.fromkeys(erased_names, at)
        ids = [  # now, because servers drop them as soon as they know
            str(line["id"])
            for name in files.names(folder)
            for line in filter(None, files.lines(folder, name))
            if line.get("kind") == RANKING and named.holds(line)
        ]
        try:
            erased.add(folder, erased_names, at)
        except OSError as error:
            raise EraseUnfinished(
                f"nothing is erased yet: {folder / Erased.FILE} cannot be written ({error.strerror or error}); free "
                "some space and run the same command again"
            ) from error
        left, failed = _remove(folder, erased)
    unfinished = None
    if failed:
        first = next(iter(failed.values()))
        unfinished = (
            f"nobody counts or exports what was erased any more, but {len(failed)} files in {folder} still hold it, "
            f"because they cannot be written anew ({first.strerror or first}); free some space and run the same "
            "command again"
        )
    keys = {*ids, *(origin.conversation or "" for origin in filter(None, map(origin_of, ids)))}
    return Erasing(
        len(ids), left, erased_names | example_names, unfinished, {name_of[key] for key in keys & name_of.keys()}
    )


def _remove(folder: Path, erased: Erased) -> tuple[int, dict[str, OSError]]:
    """Take what was erased out of all files; returns how many servers have open still, and which cannot be written."""
    until, failed = time.monotonic() + WAIT_SECONDS, dict[str, OSError]()
    left = files.names(folder)
    while True:
        still_open = []
        for name in left:
            try:
                is_closed = files.closed(folder, name)
                if not any(erased.holds(line) for line in files.lines(folder, name)):
                    continue
                if is_closed:
                    files.rewrite(folder, name, erased.holds)
                else:
                    still_open.append(name)
            except FileNotFoundError:
                pass  # a server removed it, because it is too old
            except OSError as error:
                failed[name] = error
        left = still_open
        if not left or time.monotonic() > until:
            return len(left), failed
        time.sleep(_AGAIN_SECONDS)
