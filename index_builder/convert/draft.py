"""What a file of an unknown kind holds: a tree of its fields with examples, and the beginning of a map."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from polyrank.index_builder.convert.rows import Object
from polyrank.index_builder.convert.times import readings
from polyrank.index_builder.pool.values import are_true_and_false, has_tags

_MOST_FIELDS, _MOST_DEPTH, _MOST_KEYS = 60, 8, 40
_EXAMPLE = 60  # characters
_UNSPACED, _MANY_LETTERS = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]"), 8


class Tree:
    """The fields of records: by their places, of which `[]` marks a list, the values that lie there."""

    def __init__(self, rows: Sequence[Object]) -> None:
        self.values: dict[str, list[Any]] = {}
        for row in rows:
            self._take(row, "", 0)

    def _take(self, value: Any, place: str, depth: int) -> None:
        if isinstance(value, dict) and depth < _MOST_DEPTH:
            names = [*value] if len(value) <= _MOST_KEYS else [*value][:1]
            for name in names:
                is_plain = name.isascii() and name.isidentifier()
                shown = "*" if len(value) > _MOST_KEYS else name if is_plain else json.dumps(name, ensure_ascii=False)
                self._take(value[name], f"{place}.{shown}" if place else shown, depth + 1)
        elif isinstance(value, list) and depth < _MOST_DEPTH:
            for each in value[:20]:
                self._take(each, f"{place}[]", depth + 1)
        elif value not in (None, "") and len(self.values) < 1000:
            self.values.setdefault(place, []).append(value)

    def tree(self) -> Iterator[str]:
        wide = min(40, max(map(len, self.values), default=0))
        for place, values in list(self.values.items())[:_MOST_FIELDS]:
            example = " ".join(str(values[0]).split())
            example = example if len(example) <= _EXAMPLE else f"{example[:_EXAMPLE]}…"
            yield f"  {place:<{wide}}  {example if example.isprintable() else repr(example)}"
        if len(self.values) > _MOST_FIELDS:
            yield f"  … and {len(self.values) - _MOST_FIELDS} more fields"


def draft(fields: Tree) -> str:
    """Return the beginning of a map: what seems to be where, and beside it what else may be."""
    values = {
        place: them
        for place, them in fields.values.items()
        if all(isinstance(each, str | int | float) for each in them)
    }
    letters = {place: sum(len(str(each)) for each in them) / len(them) for place, them in values.items()}
    texts = sorted((place for place, them in values.items() if _is_text(them)), key=lambda place: -letters[place])
    text = next((place for place in texts if "[]" in place), next(iter(texts), ""))
    holder = text.rpartition("[]")[0]  # the list of messages
    each, _, messages = holder.rpartition("[].")
    each = f"{each}[]" if each else ""
    inner = f"{holder}[]" if holder else ""
    own = [place for place in values if place.startswith(inner)]
    of_record = [place for place in values if place.startswith(each) and place not in own] if holder else own
    times = [place for place in own if place != text and _is_time(values[place])]
    others = [place for place in own if place not in (text, *times)]
    marks = [place for place in others if are_true_and_false({*map(str, values[place])})]
    who = [place for place in others if 1 < _distinct(values[place]) <= 5]
    who.sort(key=lambda place: (place in marks, _distinct(values[place])))
    ids = [place for place in of_record if place.split(".")[-1].strip('"').lower().endswith(("id", "key"))]
    rest = [place for place in of_record if place not in (text, *times, *who[:1])]
    repeated = [place for place in rest if holder or _distinct(values[place]) < len(values[place])]
    conversation = list(dict.fromkeys([*ids, *repeated]))
    names = list(dict.fromkeys(map(str, values[who[0]] if who else ())))
    telling = dict.fromkeys([text or next(iter(values), ""), *conversation[:1], *who[:1]])
    clues = [_inside(place, each) for place in telling]
    is_html = any(has_tags(str(value)) for value in values.get(text, ()))
    lines = [
        'about = "what wrote these files"',
        f"told_by = {json.dumps(clues, ensure_ascii=False)}",
        _line("each", [each] if each else [], "where records lie in a document"),
        _line("conversation", [_inside(place, each) for place in conversation], "which conversation a record is of"),
        _line("messages", [messages] if holder else [], "the list of messages; without it each record is one"),
        _line("text", [_inside(text, inner)] if text else [], "what a message says"),
        _line("who", [_inside(place, inner) for place in who], "who says it: a name, or a role"),
        f"answering = {json.dumps(names[-1:], ensure_ascii=False)}  # which of {', '.join(names) or 'them'} answers",
        _line("time", [_inside(place, inner) for place in times], "when"),
        _line("only", [_inside(place, inner) for place in marks], "whether it is one, and no note", is_sure=False),
        f'texts = "{"html" if is_html else "plain"}"  # or entities, slack, html, mail',
    ]
    return "\n".join(lines) + "\n"


def _inside(place: str, holder: str) -> str:
    return place.removeprefix(holder).removeprefix(".") or "@"


def _distinct(values: Sequence[Any]) -> int:
    return len({*map(str, values)})


def _line(key: str, places: Sequence[str], meaning: str, is_sure: bool = True) -> str:
    also = f"; or {', '.join(places[1:4])}" if places[1:] else ""
    line = f"{key} = {json.dumps(places[0] if places else '', ensure_ascii=False)}  # {meaning}{also}"
    return line if places and is_sure else f"# {line}"


def _is_text(values: Sequence[Any]) -> bool:
    return not _is_time(values) and any(
        isinstance(each, str) and (" " in each.strip() or len(_UNSPACED.findall(each)) >= _MANY_LETTERS)
        for each in values
    )


def _is_time(values: Sequence[Any]) -> bool:
    texts = [str(each) for each in values]
    numbers = [each for each in values if isinstance(each, int | float)]
    if any(isinstance(each, bool) for each in values) or any(not 1e8 < each < 1e14 for each in numbers):
        return False
    return not any(text.isdigit() and len(text) < 9 for text in texts) and bool(readings(lambda: texts, None)[0])
