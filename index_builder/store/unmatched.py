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


class ConditionReport(NamedTuple):
    """What candidates have where a condition looks."""

    holds: bool  # whether it holds for any of them
    kinds: frozenset[str]  # of the field's values; empty: none has the field
    alike: frozenset[str]  # names of fields that the condition may mean, if none has the field

    def joined(self, other: "ConditionReport") -> "ConditionReport":
        return ConditionReport(self.holds or other.holds, self.kinds | other.kinds, self.alike | other.alike)


class FilterReport(NamedTuple):
    """What was seen of a filter: whether it lets any candidate through, and else of each of its first conditions."""

    lets_through: bool
    conditions: tuple[ConditionReport, ...]

    def joined(self, other: "FilterReport") -> "FilterReport":
        """Return what was seen in both parts of a pool."""
        if self.lets_through or other.lets_through:
            return FilterReport(True, ())
        pairs = zip(self.conditions, other.conditions, strict=True)
        return FilterReport(False, tuple(one.joined(two) for one, two in pairs))


def looking(snapshot: Snapshot, filter_: Mapping[str, Any]) -> Steps[FilterReport]:
    """Look at what a filter asks for, and pause after each condition."""
    yield from snapshot.reading(filter_)
    if len(snapshot.matching(filter_)):
        return FilterReport(True, ())
    reports = []
    for condition in _conditions(filter_):
        reports.append(_report(snapshot, condition))
        yield
    return FilterReport(False, tuple(reports))


def notes(filter_: Mapping[str, Any], report: FilterReport) -> list[str]:
    """Return why an answer has nothing in it, a sentence for each reason."""
    if report.lets_through:  # what is missing was excluded, or is on other pages
        return []
    pairs = zip(_conditions(filter_), report.conditions, strict=True)
    reasons = dict.fromkeys(f"filter: {_why(condition, each)}" for condition, each in pairs if not each.holds)
    return [*reasons] or ["filter: no candidate has all of it at once"]


def _conditions(filter_: Mapping[str, Any]) -> list[Condition]:
    """Return the first conditions that let candidates through; what stands under `$not` lets through all others."""

    def every(part: Mapping[str, Any]) -> Iterator[Condition]:
        for key, operand in part.items():
            if key in ("$and", "$or"):
                for inner in operand:
                    yield from every(inner)
            elif key != "$not":
                yield key, operand

    return [*islice(every(filter_), MOST_CONDITIONS)]


def _report(snapshot: Snapshot, condition: Condition) -> ConditionReport:
    field, operand = condition
    if len(snapshot.matching({field: operand})):
        return ConditionReport(True, frozenset(), frozenset())
    kinds = frozenset(snapshot.kinds(field))
    return ConditionReport(False, kinds, frozenset() if kinds else frozenset(_alike(field, snapshot.names - {field})))


def _alike(field: str, names: set[str]) -> list[str]:
    """Return the names that are most like a field's: with the same last part, else with most letters in common."""
    usable = [name for name in names if len(name) <= MAX_NAME_CHARS]
    last = field.rpartition(".")[2].lower()
    same = [name for name in usable if name.rpartition(".")[2].lower() == last]
    if same:
        return nsmallest(_MOST_ALIKE, same)
    prefix = field[:MAX_NAME_CHARS]
    compared = nsmallest(MOST_COMPARED, usable, key=lambda name: (abs(len(name) - len(prefix)), name))
    return get_close_matches(prefix, compared, _MOST_ALIKE, cutoff=0.7)


def _why(condition: Condition, report: ConditionReport) -> str:
    name, operand = condition[0][:MAX_NAME_CHARS], condition[1]
    if not report.kinds:
        guesses = get_close_matches(name, sorted(report.alike), 1, cutoff=0.0)
        return f"no candidate has the field {name}" + "".join(f"; did you mean {each}?" for each in guesses)
    if isinstance(operand, Mapping):
        bounds = [bound for key, bound in operand.items() if key != "exists"]
        if not bounds:
            return f"every candidate has the field {name}"
        kinds, asks, lacks = kinds_of(bounds), "the bounds are", "has no value between the bounds"
    else:
        kinds, asks, lacks = kinds_of([operand]), "the filter asks for", "has none of the values asked for"
    if report.kinds == {"objects"}:
        return f"{name} holds objects; name a field in them by a dot, as in {name}.FIELD"
    if kinds & report.kinds:
        return f"{name} {lacks}"
    return f"{name} holds {_listed(report.kinds)}, and {asks} {_listed(kinds)}"


def _listed(kinds: set[str] | frozenset[str]) -> str:
    return " and ".join(sorted(kinds))
