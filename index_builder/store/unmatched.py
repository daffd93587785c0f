"""Why a filter lets nothing through: a field that no candidate has, bounds of another kind than the field's values.

A pool that is cut into parts asks each of them, and joins what they have seen. The work is bounded: it looks at the
first conditions of a filter, and compares a name that no candidate has with few others.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from polyrank.index_builder.generation.filters import kinds_of
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.text.reading import Steps

MOST_CONDITIONS = 8
# Names that one is compared with: those of the most similar length. Comparing two takes some 20 us.
MOST_COMPARED = 300
MAX_NAME_CHARS = 64
_MOST_ALIKE = 3


# A field, and what a filter asks of it: a value, a list of values, or an object of bounds and `exists`.
Condition = tuple[str, Any]


class Seen(NamedTuple):
    """What candidates have where a condition looks."""

    holds: bool  # whether it holds for any of them
    kinds: frozenset[str]  # of the field's values; empty: none has the field
    alike: frozenset[str]  # names of fields that the condition may mean, if none has the field

    def joined(self, other: "Seen") -> "Seen":
        return Seen(self.holds or other.holds, self.kinds | other.kinds, self.alike | other.alike)


class Looked(NamedTuple):
    """What was seen of a filter: whether it lets any candidate through, and else of each of its first conditions."""

    lets_through: bool
    seen: tuple[Seen, ...]

    def joined(self, other: "Looked") -> "Looked":
        """Return what was seen in both parts of a pool."""
        if self.lets_through or other.lets_through:
            return Looked(True, ())
        return Looked(False, tuple(one.joined(two) for one, two in zip(self.seen, other.seen, strict=True)))


def looking(snapshot: Snapshot, filter_: Mapping[str, Any]) -> Steps[Looked]:
    """Look at what a filter asks for, and pause after each condition."""
    yield from snapshot.reading(filter_)
    if len(snapshot.matching(filter_)):
        return Looked(True, ())
    seen = []
    for condition in _conditions(filter_):
        seen.append(_seen(snapshot, condition))
        yield
    return Looked(False, tuple(seen))


def notes(filter_: Mapping[str, Any], looked: Looked) -> list[str]:
    """Return why an answer has nothing in it, a sentence for each reason."""
    if looked.lets_through:  # what is missing was excluded, or is on other pages
        return []
    pairs = zip(_conditions(filter_), looked.seen, strict=True)
    found = dict.fromkeys(f"filter: {_why(condition, seen)}" for condition, seen in pairs if not seen.holds)
    return [*found] or ["filter: no candidate has all of it at once"]


def _conditions(filter_: Mapping[str, Any]) -> list[Condition]:
    """Return the first conditions that let candidates through; what stands under `$not` lets through all others."""

    def every(part: Mapping[str, Any]) -> Iterator[Condition]:
        for key, wanted in part.items():
            if key in ("$and", "$or"):
                for inner in wanted:
                    yield from every(inner)
            elif key != "$not":
                yield key, wanted

    return [*islice(every(filter_), MOST_CONDITIONS)]


def _seen(snapshot: Snapshot, condition: Condition) -> Seen:
    field, wanted = condition
    if len(snapshot.matching({field: wanted})):
        return Seen(True, frozenset(), frozenset())
    kinds = frozenset(snapshot.kinds(field))
    return Seen(False, kinds, frozenset() if kinds else frozenset(_alike(field, snapshot.names - {field})))


def _alike(field: str, names: set[str]) -> list[str]:
    """Return the names that are most like a field's: with the same last part, else with most letters in common."""
    usable = [name for name in names if len(name) <= MAX_NAME_CHARS]
    last = field.rpartition(".")[2].lower()
    same = [name for name in usable if name.rpartition(".")[2].lower() == last]
    if same:
        return nsmallest(_MOST_ALIKE, same)
    cut = field[:MAX_NAME_CHARS]
    compared = nsmallest(MOST_COMPARED, usable, key=lambda name: (abs(len(name) - len(cut)), name))
    return get_close_matches(cut, compared, _MOST_ALIKE, cutoff=0.7)


def _why(condition: Condition, seen: Seen) -> str:
    name, wanted = condition[0][:MAX_NAME_CHARS], condition[1]
    if not seen.kinds:
        meant = get_close_matches(name, sorted(seen.alike), 1, cutoff=0.0)
        return f"no candidate has the field {name}" + "".join(f"; did you mean {each}?" for each in meant)
    if isinstance(wanted, Mapping):
        bounds = [bound for key, bound in wanted.items() if key != "exists"]
        if not bounds:
            return f"every candidate has the field {name}"
        asked, asks, lacks = kinds_of(bounds), "the bounds are", "has no value between the bounds"
    else:
        asked, asks, lacks = kinds_of([wanted]), "the filter asks for", "has none of the values asked for"
    if seen.kinds == {"objects"}:
        return f"{name} holds objects; name a field in them by a dot, as in {name}.FIELD"
    if asked & seen.kinds:
        return f"{name} {lacks}"
    return f"{name} holds {_listed(seen.kinds)}, and {asks} {_listed(asked)}"


def _listed(kinds: set[str] | frozenset[str]) -> str:
    return " and ".join(sorted(kinds))
