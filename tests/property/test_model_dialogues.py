"""Any example comes back from a file as it went in."""

import tempfile
from pathlib import Path

from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, new_dialogues, read_dialogues

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SAID = TEXTS.filter(str.strip)


@st.composite
def dialogues(draw: st.DrawFn) -> Dialogue:
    context = [*draw(st.lists(TEXTS, max_size=4)), draw(SAID), *draw(st.lists(TEXTS, max_size=2))]
    persona, negatives = draw(st.lists(TEXTS, max_size=3)), draw(st.lists(TEXTS, max_size=4))
    response, name = draw(SAID), draw(TEXTS)
    candidates = draw(st.lists(TEXTS | st.just(response), max_size=4))
    label = draw(st.integers(0, len(candidates))) if candidates else -1
    if candidates:
        candidates.insert(label, response)
    return Dialogue(Conversation.of(context, persona), response, tuple(candidates), label, tuple(negatives), name)


@settings(max_examples=cases(200))
@given(st.lists(dialogues(), max_size=5), st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.zst"]))
def test_round_trip(examples: list[Dialogue], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"data{suffix}"
        with new_dialogues(path) as write:
            for example in examples:
                write(example)
        assert list(read_dialogues(path)) == examples
