"""Whatever is in a log, what is exported keeps its promises."""

from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from cases import cases
from feedback_logs import use, write_log
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.model.text.conversations import context_key
from polyrank.model.text.dialogues import new_dialogues, read_dialogues
from polyrank.model.text.folding import text_key
from polyrank.service.feedback.export import LABELS, LATER, MOST_OF_CONVERSATION, TRAIN, export
from polyrank.service.feedback.records import KINDS, Shown, Use
from polyrank.service.feedback.report import figures

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
