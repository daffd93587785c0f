"""Which fields of a record no path of a map reads."""

from collections.abc import Iterable, Iterator
from typing import Any

import jmespath

from polyrank.index_builder.convert.maps import OF_RECORD, Map
from polyrank.index_builder.convert.rows import Object

Place = tuple[str, ...]
_ALL = "\0"  # stands in a tree where everything below is read
_ADDED = ("_path", "_file", "_folder", "_key", "_part", "_head", "_record")
_SAME = ("slice", "index", "current", "identity")
_COMPUTED = ("literal", "multi_select_dict", "comparator", "not_expression", "function_expression")
_UNION = ("or_expression", "multi_select_list", "and_expression")
_PASSED_ON: dict[str, Place] = dict.fromkeys(("rows", "reverse", "sort_by", "max_by", "not_null"), ())
_PASSED_ON["values"] = ("*",)


class Reads:
    """The fields of a record that the paths of a map read: a tree of their names; `*` is any name."""

    def __init__(self, map_: Map) -> None:
        self.tree: Object = {}
        root: list[Place] = [()]
        record = self._of(map_.paths["inside"], root, root) if "inside" in map_.paths else root
        inner = next((key for key in ("messages", "documents") if key in map_.paths), None)
        messages = self._of(map_.paths[inner], record, root) if inner else record
        if inner and "text" not in map_.paths:
            self._mark(messages)
        for key in set(map_.paths) - {"inside", "messages", "documents", "replies"}:
            own = key in OF_RECORD or ("right" in map_.paths and key in ("candidates", "wrong"))
            self._mark(self._of(map_.paths[key], record if own else messages, root if own else record))
        for path in [map_.keep] if isinstance(map_.keep, str) else map_.keep.values():
            self._mark(self._of(path, messages if "documents" in map_.paths else record, root))
        if "replies" in map_.paths:  # they are as what they answer
            below = self._of(map_.paths["replies"], [()], root)
            for node in map(self._node, messages):
                node |= {place[-1]: node for place in below}

    def unread(self, record: Object) -> Iterator[str]:
        """Yield the places in a record that no path reads, but for those that hold nothing."""
        return _unread({key: value for key, value in record.items() if key not in _ADDED}, self.tree, "")

    def _of(self, path: str, places: list[Place], outer: list[Place]) -> list[Place]:
        return self._visit(jmespath.compile(path).parsed, places, outer)

    def _node(self, place: Place) -> Object:
        node = self.tree
        for name in place:
            node = node.setdefault(name, {})
        return node

    def _mark(self, places: Iterable[Place]) -> None:
        for place in places:
            self._node(place)[_ALL] = True

    def _visit(self, node: Any, places: list[Place], outer: list[Place]) -> list[Place]:
        """Return where the value of an expression lies, read at some places; mark what it reads on the way."""
        kind, parts = node["type"], node["children"]
        if kind == "field":
            return outer if node["value"] == "_record" else [(*place, node["value"]) for place in places]
        if kind in _SAME:
            return places
        if kind in _COMPUTED or kind == "key_val_pair" or kind in _UNION:
            inside = [self._visit(part, places, outer) for part in parts if part["type"] != "expref"]
            for part in parts:
                if part["type"] == "expref":  # of each of what stands before it
                    self._mark(self._visit(part["children"][0], inside[0], outer))
            every = [place for each in inside for place in each]
            if kind == "function_expression" and node["value"] in _PASSED_ON:
                return [(*place, *_PASSED_ON[node["value"]]) for place in every]
            self._mark(every if kind in _COMPUTED else inside[0] if kind == "and_expression" else [])
            return [] if kind in _COMPUTED else every
        return self._along(kind, parts, places, outer)

    def _along(self, kind: str, parts: list[Any], places: list[Place], outer: list[Place]) -> list[Place]:
        for at, part in enumerate(parts[:2]):
            if at and kind == "filter_projection":
                self._mark(self._visit(parts[2], places, outer))
            if at and kind == "value_projection":
                places = [(*place, "*") for place in places]
            places = self._visit(part, places, outer)
        return places


def _unread(value: Any, tree: Object, place: str) -> Iterator[str]:
    if tree.get(_ALL):
        return
    if isinstance(value, list):
        for each in value:
            yield from _unread(each, tree, place)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if inner in (None, "", [], {}):
                continue
            shown = name if name in tree else "*" if "*" in tree else ""
            if shown:
                yield from _unread(inner, tree[shown], f"{place}{shown}.")
            else:
                yield f"{place}{name}"
