"""What metadata the rows of a pool have: which fields, of which kinds, in how many rows, and what was left out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

TEXT, NUMBER, TRUE_FALSE, LIST, OBJECT, MIXED = "text", "number", "true/false", "list", "object", "mixed"

_KINDS = {str: TEXT, int: NUMBER, float: NUMBER, bool: TRUE_FALSE, list: LIST, dict: OBJECT}
_MOST_COUNTED = 1000  # names are a pool's to choose, so their number is not bounded
_MOST_SHOWN = 30
_NAME_CHARACTERS = 40


class Fields:
    """Counts the fields of rows that are taken, up to `_MOST_COUNTED` names, and what is left out of them.

    Attributes:
        titled: rows of BEIR's form whose title was put in front of the text.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, Counter[str]] = {}
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._uncounted = False
        self.titled = 0

    def count(self, metadata: Mapping[str, Any]) -> None:
        """Take in the metadata of a row."""
        for name, value in metadata.items():
            if name in self._kinds:
                self._kinds[name][_KINDS[type(value)]] += 1
            elif len(self._kinds) < _MOST_COUNTED:
                self._kinds[name] = Counter([_KINDS[type(value)]])
            else:
                self._uncounted = True

    def leave_out(self, name: str, why: str, rows: int = 1) -> None:
        """Note that rows have a field that was not taken."""
        if (name, why) in self._left_out or len(self._left_out) < _MOST_COUNTED:
            self._left_out[name, why] += rows

    def described(self) -> dict[str, Any]:
        """Return what was found as JSON can say it: `fields`, by name, and `left_out`."""
        return {
            "fields": {name: {"kind": _one(kinds), "rows": kinds.total()} for name, kinds in self._kinds.items()},
            "left_out": [{"field": name, "why": why, "rows": rows} for (name, why), rows in self._left_out.items()],
        }

    def lines(self) -> list[str]:
        """Return what a person should know of the fields, at most three lines of bounded length."""
        found = [f"{_shown(name)} ({_with_rows(kinds)})" for name, kinds in self._kinds.items()]
        lines = [f"fields: {_some(found)}" if found else "fields: none besides id and text"]
        if self._uncounted:
            lines[0] += f"; there are more than {_MOST_COUNTED} names"
        if self.titled:
            lines.append(f"the title stands in front of the text in {_rows(self.titled)} with _id, as in BEIR's files")
        if self._left_out:
            left = [f"{_shown(name)} ({why}; {_rows(rows)})" for (name, why), rows in self._left_out.items()]
            lines.append(f"left out: {_some(left)}")
        return lines


def _one(kinds: Counter[str]) -> str:
    return next(iter(kinds)) if len(kinds) == 1 else MIXED


def _with_rows(kinds: Counter[str]) -> str:
    if len(kinds) == 1:
        return f"{_one(kinds)}, {_rows(kinds.total())}"
    return f"{MIXED}: " + ", ".join(f"{kind} in {_rows(rows)}" for kind, rows in kinds.most_common())


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _shown(name: str) -> str:
    short = name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}…"
    return short if short.isprintable() and short else repr(short)


def _some(items: Iterable[str]) -> str:
    shown = list(items)
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
