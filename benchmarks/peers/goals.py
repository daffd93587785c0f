"""Compare results with the goals of the project."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.ratios import OURS, Figure

DEFAULT = "torch"
DEFAULT_GOAL, FASTEST_GOAL = 3.0, 1.1
LOSSY = ("onnx-int8",)  # reported, but not a competitor: it changes the vectors
CALLERS, THROUGHPUT_GOALS = 16, {"infinity, torch": 3.0, "infinity, optimum": 1.2}
LATENCY_PEER, LATENCY_GOAL = "FastAPI app", 2.0

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: the work, the competitor, and how many times as fast polyrank should be and is."""

    work: str
    against: str
    goal: float
    reached: Figure

    def row(self) -> dict[str, str]:
        """Format the goal as a row of a table."""
        met = "yes" if self.reached.median >= self.goal else "no"
        return {
            "work": self.work,
            "against": self.against,
            "goal": f"{self.goal}",
            "ratio": str(self.reached),
            "met": met,
        }


def of_calls(rows: Rows) -> Iterator[Goal]:
    """Yield the goals of encoding and reranking: sentence-transformers' default, and its fastest one not in LOSSY."""
    for work, threads in dict.fromkeys((row["work"], row["threads"]) for row in rows):
        same = [row for row in rows if (row["work"], row["threads"]) == (work, threads)]
        peers = [row for row in same if not row["who"].startswith(OURS)]
        name = f"{work}, {threads} thread{'s' if threads > 1 else ''}"
        yield from (
            Goal(name, f"sentence-transformers, {row['who']}", DEFAULT_GOAL, Figure(**row["times_ours"]))
            for row in peers
            if row["who"] == DEFAULT
        )
        fastest = min((row for row in peers if row["who"] not in LOSSY), key=lambda row: row["ms"]["median"])
        yield Goal(name, f"its fastest, {fastest['who']}", FASTEST_GOAL, Figure(**fastest["times_ours"]))


def of_servers(rows: Rows) -> Iterator[Goal]:
    """Yield the goals of serving: requests a second of many callers, and the latency of one."""
    size = max((row["candidates"] for row in rows if row["callers"] == CALLERS), default=0)
    for row in rows:
        if row["candidates"] == size and row["callers"] == CALLERS and row["who"] in THROUGHPUT_GOALS:
            work = f"`/rank` over {size:,}, {CALLERS} callers: requests a second"
            yield Goal(work, row["who"], THROUGHPUT_GOALS[row["who"]], Figure(**row["per_second_times"]))
    for row in _alone(rows, size):
        for of in ("p50", "p99"):
            yield Goal(f"`/rank` over {size:,}, 1 caller: {of}", row["who"], LATENCY_GOAL, Figure(**row[f"{of}_times"]))


def _alone(rows: Rows, size: int) -> Rows:
    found = [row for row in rows if (row["candidates"], row["callers"], row["who"]) == (size, 1, LATENCY_PEER)]
    return found[:1]
