"""Checks the filter of a request. What a filter means is in `polyrank.index_builder.generation.filters`."""

import math
from collections.abc import Callable
from typing import Any

FILTER_DESCRIPTION = (
    "on metadata; all keys must hold. A field (`a.b`: the field `b` of the object `a`): a value, a list (any of it), "
    "or an object of `gt`, `gte`, `lt`, `lte` (numbers or strings) and `exists` (true or false). `$and`, `$or`: a list "
    "of filters; `$not`: a filter"
)
MAX_DEPTH = 8
MAX_CONDITIONS = 64
MAX_VALUES = 1000

_RANGE = ("gt", "gte", "lt", "lte")


def checked_filter(filter_: dict[str, Any]) -> dict[str, Any]:
    """Return the filter unchanged if it is one.

    Raises:
        ValueError: it is none; the message says where, and what may stand there.
    """
    _conditions(filter_, "", 1)
    return filter_


def _conditions(filter_: object, where: str, depth: int) -> int:
    """Check a filter and count its conditions; an empty filter counts as one, because it costs a pass over the rows."""
    if not isinstance(filter_, dict):
        raise ValueError(f"{where}: must be a filter, an object")
    if depth > MAX_DEPTH:
        raise ValueError(f"{where}: filters are nested deeper than {MAX_DEPTH}")
    count = 0
    for key, wanted in filter_.items():
        place = f"{where}.{key[:80]}".lstrip(".")
        if key in ("$and", "$or"):
            if not isinstance(wanted, list) or not wanted:
                raise ValueError(f"{place}: must be a list of filters, one at least")
            for at, inner in enumerate(wanted):
                count = _bounded(count + _conditions(inner, f"{place}[{at}]", depth + 1))
        elif key == "$not":
            count += _conditions(wanted, place, depth + 1)
        elif key.startswith("$"):
            raise ValueError(f"{place}: is not one of $and, $or, $not")
        else:
            _check_field(wanted, place)
            count += 1
        _bounded(count)
    return max(count, 1)


def _bounded(conditions: int) -> int:
    if conditions > MAX_CONDITIONS:
        raise ValueError(f"has more than {MAX_CONDITIONS} conditions")
    return conditions


def _check_field(wanted: object, place: str) -> None:
    if isinstance(wanted, dict):
        _check_operators(wanted, place)
        return
    values = wanted if isinstance(wanted, list) else [wanted]
    if not 1 <= len(values) <= MAX_VALUES:
        raise ValueError(f"{place}: a list must hold 1 to {MAX_VALUES} values")
    if not all(_is_scalar(value) for value in values):
        raise ValueError(f"{place}: values must be strings, finite numbers, true, false or null")


def _check_operators(wanted: dict[str, object], place: str) -> None:
    unknown = next((name for name in wanted if name not in (*_RANGE, "exists")), None)
    if unknown is not None:
        plain = unknown.lstrip("$")
        hint = f"; write {plain}, without $" if plain in (*_RANGE, "exists") else ""
        if not hint and _is_scalar(wanted[unknown]):
            hint = f"; for the field {plain[:80]} inside it write {place}.{plain[:80]}"
        raise ValueError(f"{place}.{unknown[:80]}: is not one of {', '.join(_RANGE)}, exists{hint}")
    if not wanted:
        raise ValueError(f"{place}: give one of {', '.join(_RANGE)}, exists")
    if not isinstance(wanted.get("exists", True), bool):
        raise ValueError(f"{place}.exists: must be true or false")
    bounds = [bound for name, bound in wanted.items() if name != "exists"]
    kinds: tuple[Callable[[object], bool], ...] = (_is_number, lambda bound: isinstance(bound, str))
    if not any(all(map(is_kind, bounds)) for is_kind in kinds):
        raise ValueError(f"{place}: bounds must be finite numbers, or strings, all of one kind")


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
