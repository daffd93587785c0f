"""How many random cases a property is tried with: a third of them, or all where ALL_CASES is set."""

import os

FEWEST = 4


def cases(count: int) -> int:
    """How many of so many cases to try."""
    return count if os.environ.get("ALL_CASES") else max(min(count, FEWEST), count // 3)
