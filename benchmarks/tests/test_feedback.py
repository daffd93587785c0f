"""What the loop is shown on keeps its parts apart; costs are compared round by round."""

import random

from benchmarks import loop_demonstration
from benchmarks.load import feedback

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue


def test_no_dialogue_of_the_use_is_in_the_golden_set_or_the_pool() -> None:
    examples = [
        Dialogue(Conversation.of(f"hello {talk}.{turn}"), f"reply {talk}.{turn % 2}", dialogue=f"d{talk}")
        for talk in range(1000)
        for turn in range(3)
    ]
    found = loop_demonstration.parts(examples, 0.1, random.Random(0))
    used, golden = ({each.dialogue for each in some} for some in (found.use, found.golden))
    assert (len(used), len(golden)) == (500, loop_demonstration.GOLDEN_DIALOGUES)
    assert not used & golden
    assert (len(found.use), len(found.golden)) == (1500, 450), "whole dialogues"
    assert set(found.pool) == {each.response for each in examples if each.dialogue not in used}
    assert found == loop_demonstration.parts(examples, 0.1, random.Random(0))
    assert found != loop_demonstration.parts(examples, 0.1, random.Random(1))


def test_a_slow_round_is_slow_for_both_sides() -> None:
    off = [dict.fromkeys(feedback.FIGURES, value) for value in (10.0, 40.0, 11.0)]
    on = [dict.fromkeys(feedback.FIGURES, value) for value in (10.5, 40.0, 11.0)]
    for row in feedback.compared({feedback.OFF: off, feedback.ON: on}):
        assert row == {"figure": row["figure"], "off": 11.0, "texts": 11.0, "ratio": 1.0, "least": 1.0, "most": 1.05}
