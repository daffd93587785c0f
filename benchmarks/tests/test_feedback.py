"""Costs of recording are compared round by round."""

from benchmarks.load import feedback


def test_a_slow_round_is_slow_for_both_sides() -> None:
    off = [dict.fromkeys(feedback.FIGURES, value) for value in (10.0, 40.0, 11.0)]
    on = [dict.fromkeys(feedback.FIGURES, value) for value in (10.5, 40.0, 11.0)]
    for row in feedback.compared({feedback.OFF: off, feedback.ON: on}):
        assert row == {"figure": row["figure"], "off": 11.0, "texts": 11.0, "ratio": 1.0, "least": 1.0, "most": 1.05}
