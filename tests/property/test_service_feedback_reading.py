"""Whatever is in a line of a log of feedback, it is read or counted as damaged, and no command falls over it.

Whatever is in a log, what is exported keeps its promises.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from cases import cases
from feedback_logs import use, write_log
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.conversations import context_key
from polyrank.model.text.dialogues import new_dialogues, read_dialogues
from polyrank.model.text.folding import text_key
from polyrank.service.cli.reports import write_feedback
from polyrank.service.feedback.erasure import erase
from polyrank.service.feedback.export import LABELS, LATER, MOST_OF_CONVERSATION, TRAIN, export
from polyrank.service.feedback.reading import LogTally, uses
from polyrank.service.feedback.records import KINDS, Shown, Use
from polyrank.service.feedback.report import figures
from polyrank.service.loop.trial import look

NUMBERS = (
    st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.sampled_from([1e308, 253402300800, 10**30])
)
DEEP = st.integers(1, 2000).map(lambda depth: json.loads("[" * min(depth, 500) + "]" * min(depth, 500)))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | DEEP,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
SAID = Conversation((Turn("hello", "user"), Turn("the bill")), ("kind",))
GOOD = use(
    1, SAID, ("chosen", "a"), ("edited", "b", "better"), shown=(Shown("a", 0.5, "A"), Shown("b", 0.1, "B")),
    side="live", conversation="c", replaced="late",
)  # fmt: skip
LINES = [orjson.loads(orjson.dumps(each)) for each in (GOOD.ranking, *GOOD.events)]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in a line."""
    yield path
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, name))


def put(line: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The line with another value at a place."""
    if not path:
        return value
    copy = line.copy()
    copy[path[0]] = put(line[path[0]], path[1:], value)
    return copy


PLACES = [(number, path) for number, line in enumerate(LINES) for path in places(line)]


@settings(max_examples=cases(24), deadline=None)
@given(st.sampled_from(PLACES), VALUES)
def test_any_value_in_any_field_is_read_or_counted_as_damaged(place: tuple[int, tuple[Any, ...]], value: Any) -> None:
    number, path = place
    with TemporaryDirectory() as folder:
        root = write_log(Path(folder), [use(5, "Hi", ("written", None, "x"), conversation="d")])
        [log] = (root / "feedback").iterdir()
        wrong = [put(line, path, value) if at == number else line for at, line in enumerate(LINES)]
        with log.open("a") as file:
            file.writelines(json.dumps(each) + "\n" for each in wrong)
        found = list(uses(root, tally := LogTally()))
        events = sum(len(each.events) for each in found) + tally.alone + tally.unknown
        assert len(found) + events + tally.repeated + tally.damaged == 2 + len(LINES)
        assert tally.damaged <= 1
        look(root, "g", [(0.0, 0.5)], 2.0)
        with suppress(InvalidInput):
            export(root, root / "out")
            assert all(len(list(read_dialogues(each))) < 9 for each in (root / "out").iterdir())
        assert erase(root, ["nobody"]).rankings == 0
        write_feedback(root / "page.html", root, figures(root))


TURNS = st.sampled_from(["Hi", " hi", "HI \u200b", "the bill", "\u202eمرحبا", "<b>", "x" * 3, "y", "z"])
REPLIES = st.sampled_from(["a", "b", "c", "A"])
EVENTS = st.tuples(
    st.sampled_from(KINDS), st.none() | REPLIES, st.none() | st.sampled_from(["", "mine", "Reply A", "é"])
)


@st.composite
def logs(draw: st.DrawFn) -> list[Use]:
    count = draw(st.integers(1, 30))
    texts = {name: f"reply {name}" for name in "abcA"}
    return [
        use(
            number,
            draw(TURNS),
            *draw(st.lists(EVENTS, max_size=3)),
            shown=tuple(Shown(name, 0.0, texts[name]) for name in draw(st.permutations("abcA"))),
            conversation=draw(st.none() | st.sampled_from(["one", "two"])),
        )
        for number in range(count)
    ]


@settings(max_examples=cases(25))
@given(logs(), st.lists(TURNS, max_size=2))
def test_what_judges_does_not_train(log: list[Use], kept_apart: list[str]) -> None:
    with TemporaryDirectory() as folder:
        root, golden = Path(folder), Path(folder) / "golden.jsonl"
        golden.write_bytes(b"".join(orjson.dumps({"context": [each], "response": "x"}) + b"\n" for each in kept_apart))
        write_log(root, log)
        done = export(root, root / "out", golden=[golden])
        files = {name: list(read_dialogues(root / "out" / name)) for name in (TRAIN, LATER, LABELS)}
        figures(root)
        with new_dialogues(root / "again.jsonl") as write:
            for each in files[TRAIN]:
                write(each)
        assert (root / "again.jsonl").read_bytes() == (root / "out" / TRAIN).read_bytes()
    train, later, labels = files.values()
    judging = {context_key(each.conversation) for each in later}
    golden_turns = {text_key(each) for each in kept_apart}
    assert not judging & {context_key(each.conversation) for each in train}
    assert not golden_turns & {text_key(each.conversation.turns[0].text) for each in train}
    assert not {each.dialogue for each in train} & {each.dialogue for each in (*later, *labels)}
    assert all(text_key(each.response) not in map(text_key, each.negatives) for each in train)
    assert done.files[TRAIN]["chosen"] <= MOST_OF_CONVERSATION * len({each.dialogue for each in train})
    assert {each.category for each in labels} <= {"right", "wrong"}
