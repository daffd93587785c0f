"""What the latest rankings have shown, so that an event about anything else is known when it comes.

A process knows what it has written itself. What other processes of its host have written it reads from their files when
an event asks for it, those of the minute before it began too: a worker that was killed may have lost some. Of rankings
of other hosts, of older ones, and of those that it has forgotten, it knows nothing: whoever reads the log checks them.
"""

import os
import time
from array import array
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Final

from polyrank.service.feedback import files
from polyrank.service.feedback.files import CLOSED, OPEN
from polyrank.service.feedback.identity import host_mark, origin_of
from polyrank.service.feedback.records import RANKING, RANKINGS, Event, Ranking, is_of_shown

MOST_RANKINGS: Final = 20_000
MOST_REPLIES: Final = 20 * MOST_RANKINGS
_MOST_BYTES = 4 << 20  # of a file are read at a time; what is older is forgotten
_BEGAN = time.time()  # this process, about: models are loaded later
# No ranking is in a file so long after it was asked for, and no process begins so long after the one that it replaces.
_MINUTE = 60.0


class ShownReplies:
    """The rankings of one log that this process knows. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the log; raises OSError."""
        self._folder, self._host = folder, host_mark()
        # Hashes of the ids of replies, and of the texts of those without one; None: of some it is not known.
        self._shown: OrderedDict[str, tuple[array[int], tuple[int | None, ...]]] = OrderedDict()
        self._replies = 0
        self._read: dict[str, int] = {}  # how many bytes of the lines of each file of this host
        self._since = _BEGAN - _MINUTE  # of rankings asked for later all are known that are in a file
        self._finished = set(self._names()) - set(files.names(folder, self._since))
        for name in [*self._finished]:
            with suppress(FileNotFoundError):
                self._read[name] = (folder / f"{name}{OPEN}").stat().st_size
        self._finished -= {*self._read}

    def note(self, ranking: Ranking) -> None:
        """Know a ranking that is in a file; forgets the oldest where there are too many."""
        ids = array("q", [hash(each.id) for each in ranking.shown if each.id is not None])
        ids.extend(hash(each) for each in ranking.below if each is not None)
        texts = {None if each.text is None else hash(each.text) for each in ranking.shown if each.id is None}
        if None in ranking.below:
            texts.add(None)
        self._shown[ranking.id] = ids, tuple(texts)
        self._replies += len(ids)
        while len(self._shown) > MOST_RANKINGS or self._replies > MOST_REPLIES:
            oldest, (forgotten_ids, _) = self._shown.popitem(last=False)
            self._replies -= len(forgotten_ids)
            if (origin := origin_of(oldest)) is not None:
                self._since = max(self._since, origin.at)

    def lacks(self, ranking: object) -> bool:
        """Whether a ranking is not known that would be, were it in a file."""
        origin = origin_of(ranking)
        if origin is None or origin.host != self._host:
            return False
        return origin.at > self._since and ranking not in self._shown

    def has_shown(self, event: Event) -> bool:
        """Whether an event is about what its ranking has shown, as far as this is known."""
        if (shown := self._shown.get(event.ranking)) is None:
            return not self.lacks(event.ranking)
        reply, text = (None if each is None else hash(each) for each in (event.reply, event.text))
        return is_of_shown(event.kind, reply, text, *shown)

    def catch_up(self, own: str | None) -> None:
        """Read what other processes have written; `own` is the name of the file of this one."""
        if own is not None:
            self._finished.add(own)
        for name in self._names():
            if name not in self._finished:
                is_closed = (self._folder / f"{name}{CLOSED}").exists()
                with suppress(OSError):  # what cannot be read is not known
                    self._read_on(name)
                if is_closed:
                    self._finished.add(name)
                    self._read.pop(name, None)

    def _names(self) -> list[str]:
        names = {each.partition(".")[0] for each in os.listdir(self._folder) if each.endswith((OPEN, CLOSED))}
        return sorted(name for name in names if name.partition("-")[2].startswith(self._host))

    def _read_on(self, name: str) -> None:
        """Read the whole lines that were added to a file, or all of one that was closed."""
        with files.opened(self._folder, name) as stream:
            if stream.seekable():
                at = self._read.get(name, 0)
                newest = os.fstat(stream.fileno()).st_size - _MOST_BYTES
                skips = newest > at
                stream.seek(at := max(at, newest))
            else:  # lines may have been taken out of it, so nobody knows how far it was read
                at, skips = 0, False
            since = self._since
            while (line := stream.readline(files.MOST_BYTES)).endswith(b"\n"):
                at += len(line)
                parsed = files.parsed_line(line)
                if parsed is None or parsed.get("kind") != RANKING:
                    continue
                if skips and (origin := origin_of(parsed.get("id"))) is not None:
                    since, skips = min(origin.at + _MINUTE, time.time()), False
                if self.lacks(parsed.get("id")):
                    with suppress(ValueError):
                        self.note(RANKINGS.validate_python(parsed))
            self._since = max(self._since, time.time() if skips else since)
            self._read[name] = at
