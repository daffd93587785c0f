"""Types that the bodies of requests are made of, for all routes.

What a filter means is in `polyrank.index_builder.generation.filters`; here it is checked.
"""

import math
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from polyrank.index_builder.pool.documents import ID_PATTERN, MAX_ID_CHARS, check_value, checked_id, kept_metadata
from polyrank.index_builder.pool.values import bound, instant

# For types of which the largest stands first: pydantic copies what does not fit one, and no other thread goes on.
IN_ORDER = Field(union_mode="left_to_right")


class In(BaseModel):
    """A request, or a part of one. Null means the same as an absent field: clients of C#, Java and Go send it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if all(field.is_required() or field.get_default() is None for field in cls.model_fields.values()):
            return schema  # null is what an absent field holds; a call for each candidate would take its time
        return no_info_before_validator_function(cls._without_nulls, schema)

    @classmethod
    def _without_nulls(cls, sent: Any) -> Any:
        if not isinstance(sent, dict) or None not in sent.values():
            return sent
        return {name: value for name, value in sent.items() if value is not None or name not in cls.model_fields}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        fields = handler.resolve_ref_schema(described)
        for name, field in fields.get("properties", {}).items():
            if name not in fields.get("required", ()) and not _takes_null(field):
                told = {key: field.pop(key) for key in ("default", "description", "examples", "title") if key in field}
                fields["properties"][name] = {"anyOf": [field, {"type": "null"}], **told}
        return described


def _takes_null(field: JsonSchemaValue) -> bool:
    kinds = field.get("anyOf", [field])
    return {"type": "null"} in kinds or not {"type", "$ref", "enum", "const", "oneOf", "anyOf"} & set(field)


class Strict(In):
    """A request without unknown fields, coercion or NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _not_blank(text: str) -> str:
    if not text or text.isspace():
        raise ValueError("must not be empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank), WithJsonSchema({"type": "string", "pattern": r"\S"})]


FILTER_DESCRIPTION = (
    "on metadata; all keys must hold. A field (`a.b`: the field `b` of the object `a`): a value, a list (any of it), "
    "or an object of `gt`, `gte`, `lt`, `lte` (numbers; ISO 8601 dates and times, or `now`, `now-7d`; other strings) "
    "and `exists` (true or false). `$and`, `$or`: a list of filters; `$not`: a filter"
)
MAX_DEPTH = 8
MAX_CONDITIONS = 64
MAX_VALUES = 1000

_RANGE = ("gt", "gte", "lt", "lte")


def checked_filter(filter_: dict[str, Any]) -> dict[str, Any]:
    """Return the filter if it is one, with the time that it is in place of `now`, the same throughout.

    Raises ValueError if it is none; the message says where, and what may stand there.
    """
    return _checked(filter_, "", 1, datetime.now(UTC))[0]


def _checked(filter_: object, where: str, depth: int, now: datetime) -> tuple[dict[str, Any], int]:
    """Also return how many conditions it has; none count as one, because also that costs a pass over the rows."""
    if not isinstance(filter_, dict):
        raise ValueError(f"{where}: must be a filter, an object")
    if depth > MAX_DEPTH:
        raise ValueError(f"{where}: filters are nested deeper than {MAX_DEPTH}")
    meant: dict[str, Any] = {}
    count = 0
    for key, wanted in filter_.items():
        place = f"{where}.{key[:80]}".lstrip(".")
        if key in ("$and", "$or"):
            if not isinstance(wanted, list) or not wanted:
                raise ValueError(f"{place}: must be a list of filters, one at least")
            meant[key] = []
            for at, inner in enumerate(wanted):
                part, more = _checked(inner, f"{place}[{at}]", depth + 1, now)
                count = _bounded(count + more)
                meant[key].append(part)
        elif key == "$not":
            meant[key], more = _checked(wanted, place, depth + 1, now)
            count += more
        elif key.startswith("$"):
            raise ValueError(f"{place}: is not one of $and, $or, $not")
        else:
            meant[key] = (
                _checked_range(wanted, place, now) if isinstance(wanted, dict) else _checked_values(wanted, place)
            )
            count += 1
        _bounded(count)
    return meant, max(count, 1)


def _bounded(conditions: int) -> int:
    if conditions > MAX_CONDITIONS:
        raise ValueError(f"has more than {MAX_CONDITIONS} conditions")
    return conditions


def _checked_values(wanted: Any, place: str) -> Any:
    values = wanted if isinstance(wanted, list) else [wanted]
    if not 1 <= len(values) <= MAX_VALUES:
        raise ValueError(f"{place}: a list must hold 1 to {MAX_VALUES} values")
    if not all(_is_scalar(value) for value in values):
        raise ValueError(f"{place}: values must be strings, finite numbers, true, false or null")
    return wanted


def _checked_range(wanted: dict[str, Any], place: str, now: datetime) -> dict[str, Any]:
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
    bounds = {name: each for name, each in wanted.items() if name != "exists"}
    if not all(map(_is_number, bounds.values())):
        if not all(isinstance(each, str) for each in bounds.values()):
            raise ValueError(f"{place}: bounds must be finite numbers, or strings, all of one kind")
        try:
            meant = {name: bound(each, now) for name, each in bounds.items()}
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        others = [bounds[name] for name, each in meant.items() if not instant(each)]
        if 0 < len(others) < len(bounds):
            raise ValueError(
                f"{place}: {others[0][:80]!r} is no date or time as another bound is; such are 2026-12-31, now-7d"
            )
        return {**wanted, **meant}
    return wanted


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


Id = Annotated[
    str,
    Field(min_length=1, max_length=MAX_ID_CHARS, json_schema_extra={"pattern": ID_PATTERN}),
    AfterValidator(checked_id),
]
Filter = Annotated[dict[str, JsonValue], AfterValidator(checked_filter), AfterValidator(check_value)]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(kept_metadata)]
