"""What is wrong with a request, in words that say what to do: one finding for each mistake, never the values sent.

Settings use the same words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, RootModel, ValidationError

from polyrank.service.errors import BodyInvalid, BodyMalformed

MAX_ERRORS = 20
MAX_FOUND = 100  # pydantic reports all of its errors or none; of more than anybody makes, only the number is told
MAX_NAME_CHARS = 64

Location = tuple[str | int, ...]

# pydantic puts the branch of a union among the names: "list[union[str,TurnIn]]", "TurnIn", "str".
_BRANCH = re.compile(r".*[\[(].*|str|int|float|bool|none|[A-Z]\w*In", re.DOTALL)


TYPES: Mapping[str, str] = {
    "string_type": "a string",
    "path_type": "a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "null",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
}
_BOUNDS: Mapping[str, str] = {
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "literal_error": "must be {expected}",
}
# What helps where a body is no JSON.
_HINTS = {
    "key must be a string": " (names and strings stand in double quotes)",
    "trailing comma": " (remove it)",
    "EOF": " (it ends too early)",
}


class Finding(NamedTuple):
    """One mistake: the place of a value, a dotted path, and what may stand there."""

    where: str
    what: str


class _Error(NamedTuple):
    """One error of pydantic; several may be about one mistake.

    `raw` is pydantic's place, `place` the same without branches of unions. If a value has the wrong type, `expected` is
    the right one, and `sent` the one it has.
    """

    raw: Location
    place: Location
    kind: str
    what: str
    expected: str | None
    sent: str


def refusal(error: ValidationError, model: type[BaseModel], most: int = MAX_ERRORS) -> BodyInvalid | BodyMalformed:
    """Return the error to raise for a body that `model` refused; it names the first `most` mistakes."""
    if error.error_count() > MAX_FOUND:
        return BodyInvalid(_too_many(error.error_count()))
    errors = error.errors(include_url=False)
    if errors[0]["type"] == "json_invalid":
        message = str(errors[0]["msg"])
        return BodyMalformed(message + next((hint for text, hint in _HINTS.items() if text in message), ""))
    return BodyInvalid(findings_in(errors, model, most))


def findings_in(
    errors: Sequence[Mapping[str, Any]], model: type[BaseModel] | None = None, most: int = MAX_ERRORS
) -> list[Finding]:
    """Return one finding for each of the first mistakes; `model` names the fields that unknown ones may stand for."""
    if len(errors) > MAX_FOUND:
        return _too_many(len(errors))
    mistakes = [_read(error) for error in errors]
    mistyped = {error.place[:-1] for error in mistakes if error.kind == "literal_error"}  # no other field of it fits
    meant = [
        error
        for error in mistakes
        if not (error.expected and _is_explained(error, mistakes))
        and not (error.kind in ("missing", "extra_forbidden") and error.place[:-1] in mistyped)
    ]
    unknown = [error for error in meant if error.kind == "extra_forbidden" and model][:most]
    suggested = {error.raw: _suggestion(error, model) for error in unknown}
    misspelt = {(*error.place[:-1], suggested[error.raw][0]) for error in unknown}
    groups: dict[tuple[Location, str], list[_Error]] = {}  # by place and what is said; wrong types go together
    for error in meant:
        if error.kind == "missing" and error.place in misspelt:
            continue  # it is there under a wrong name, which has its own finding
        what = suggested.get(error.raw, ("", error.what))[1]
        groups.setdefault((error.place, "" if error.expected else what), []).append(error)
    findings = (_finding(place, what or _type(same)) for (place, what), same in groups.items())
    return list(islice(findings, most))


def _too_many(errors: int) -> list[Finding]:
    return [Finding("", f"{errors} things are wrong with the request: too many to name")]


def _finding(place: Location, what: str) -> Finding:
    whole = "the body " if not place and what.startswith("must ") else ""
    return Finding(encodable(".".join(str(part)[:MAX_NAME_CHARS] for part in place)), encodable(whole + what))


def _read(error: Mapping[str, Any]) -> _Error:
    raw, kind = tuple(error["loc"]), str(error["type"])
    names = raw[:-1] if kind in ("extra_forbidden", "missing") else raw  # there the last part is a name for certain
    place = tuple(part for part in names if isinstance(part, int) or not _BRANCH.fullmatch(part)) + raw[len(names) :]
    # A text that was to be parsed has the right type, and so has an infinity: the type sent would explain nothing.
    sent = "" if kind.endswith("_parsing") or kind == "finite_number" else _type_of(error.get("input"))
    return _Error(raw, place, kind, what_is_wrong(error), TYPES.get(kind), sent)


def _type_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true or false"
    kinds = {str: "a string", int: "a number", float: "a decimal number", list: "a list", dict: "an object"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), "")


def _is_explained(error: _Error, errors: Sequence[_Error]) -> bool:
    """Whether another branch of a union took the value's type and found something else wrong: that one was meant."""
    size = len(error.place)
    return any(
        other.place[:size] == error.place and (len(other.place) > size or not other.expected)
        for other in errors
        if other is not error
    )


def _type(errors: Sequence[_Error]) -> str:
    """Say which types a value may have: "must be a string or a list, not a number"."""
    types = dict.fromkeys(sorted((error.expected or "" for error in errors), key="a string".__ne__))
    sent = errors[0].sent
    either = (", or " if "true or false" in types else " or ").join(types)
    return f"must be {either}" + (f", not {sent}" if sent and sent not in types else "")


def _suggestion(error: _Error, model: type[BaseModel] | None) -> tuple[str, str]:
    """Return the field that an unknown name was probably meant for ("": none is like it), and what to say of it."""
    name = str(error.raw[-1])[:MAX_NAME_CHARS].lower().replace("-", "_")
    models = _models_at(model, error.raw[:-1])
    fields = dict.fromkeys(field for one in models for field in one.model_fields)
    for field in get_close_matches(name, fields, 1, cutoff=0.75):
        return field, f"unknown field; did you mean {field}?"
    return "", f"unknown field; there are {', '.join(fields)}" if fields else "unknown field"


def _models_at(annotation: Any, location: Location) -> set[type[BaseModel]]:
    models = set(_models_in(annotation))
    for part in location:
        fields = [one.model_fields[part] for one in models if part in one.model_fields]
        matches = {one for one in models if re.search(rf"\b{one.__name__}\b", str(part))}
        if fields and isinstance(part, str):
            models = {inner for field in fields for inner in _models_in(field.annotation)}
            models |= {inner for field in fields for meta in field.metadata for inner in _models_in(meta)}
        elif matches:
            models = matches
    return models


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _models_in(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def what_is_wrong(error: Mapping[str, Any]) -> str:
    """Say what is wrong, from one error of pydantic; of a value of the wrong type pydantic's own words are returned."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _BOUNDS:
        return "must not be empty" if context.get("min_length") == 1 else _BOUNDS[kind].format(**context)
    if kind in ("missing", "extra_forbidden"):
        return "is required" if kind == "missing" else "unknown field"
    return str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)


def encodable(text: str) -> str:
    """Replace what is no valid Unicode."""
    return text.encode("utf-8", "replace").decode()
