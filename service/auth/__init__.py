"""Who may call what, and how often."""

from polyrank.model.options import Bounds

PER_S = Bounds(0.001, 1e9)  # calls of a key; the least is one in a quarter of an hour
AT_ONCE = Bounds(1, 1_000_000_000)
