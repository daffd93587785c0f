"""Compare results with the goals of the project."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.ratios import OURS, Figure

# Work -> how many times as fast as sentence-transformers' fastest back-end.
CALL_GOALS = {"1 context": 1.3, "32 contexts": 2.0, "a candidate of the pool": 1.3, "50 pairs": 1.3}
# A back-end is a competitor if all its vectors are as near to the default's as this, by cosine, or if it ranks as well:
# R@1 falls by at most so many points, and its interval does not reach further than that (quality.py). Others are shown,
# but do other work.
NEAR = 0.9995
MOST_POINTS, MOST_LOW = 0.3, 0.6
SEARCH_PEER, SEARCH_GOALS = "FAISS flat", {1: 1.0, 2: 1.5}  # by threads
CALLERS, THROUGHPUT_GOALS = 16, {"infinity, torch": 2.0, "infinity, optimum": 2.0}
LATENCY_PEER, LATENCY_GOAL = "FastAPI app", 2.0
MOST_OVERHEAD_MS = 2.0

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: the work, the competitor, and how many times as fast polyrank should be and is.

    Where `at_most`, there is no competitor, and `goal` is a bound that `reached` should not exceed.
    """

    work: str
    against: str
    goal: float
    reached: Figure
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the median reaches the goal."""
        return self.reached.median <= self.goal if self.at_most else self.reached.median >= self.goal

    def row(self) -> dict[str, str]:
        """Format the goal as a row of a table."""
        return {
            "work": self.work,
            "against": self.against,
            "goal": f"at most {self.goal}" if self.at_most else f"{self.goal}",
            "ratio": str(self.reached),
            "met": "yes" if self.is_met else "no",
        }


def of_results(results: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
    """Return all goals of the comparisons whose results are there, by name: the search's, the calls', the servers'."""
    rows = {name: result["rows"] for name, result in results.items()}
    calls = [*rows.get("encode", []), *rows.get("rerank", [])]
    as_good = {
        row["who"] for row in rows.get("quality", []) if row["points"] >= -MOST_POINTS and row["low"] > -MOST_LOW
    }
    return [*of_searches(rows.get("search", [])), *of_calls(calls, as_good), *of_servers(rows.get("rank", []))]


def of_calls(rows: Rows, as_good: Container[str] = ()) -> Iterator[Goal]:
    """Yield the goals of encoding and reranking: beside sentence-transformers' fastest competitor.

    `as_good`: back-ends that rank as well as the default, however far their vectors are from its.
    """
    far = {row["who"] for row in rows if (row.get("cosine") or 1.0) < NEAR and row["who"] not in as_good}
    for work, threads in dict.fromkeys((row["work"], row["threads"]) for row in rows if row["work"] in CALL_GOALS):
        same = [row for row in rows if (row["work"], row["threads"]) == (work, threads)]
        peers = [row for row in same if not row["who"].startswith(OURS)]
        fastest = min((row for row in peers if row["who"] not in far), key=lambda row: row["ms"]["median"])
        against = f"sentence-transformers' fastest, {fastest['who']}"
        yield Goal(_named(work, threads), against, CALL_GOALS[work], Figure(**fastest["times_ours"]))


def of_searches(rows: Rows) -> Iterator[Goal]:
    """Yield the goals of searching a pool: one query of FAISS's flat index."""
    for row in rows:
        if row["who"] == SEARCH_PEER:
            name = _named(row["work"], row["threads"])
            yield Goal(name, row["who"], SEARCH_GOALS[row["threads"]], Figure(**row["times_ours"]))


def of_servers(rows: Rows) -> Iterator[Goal]:
    """Yield the goals of serving: requests a second of many callers; the latency of one, and its own overhead."""
    size = max((row["candidates"] for row in rows if row["callers"] == CALLERS), default=0)
    for row in rows:
        if row["candidates"] == size and row["callers"] == CALLERS and row["who"] in THROUGHPUT_GOALS:
            work = f"`/rank` over {size:,}, {CALLERS} callers: requests a second"
            yield Goal(work, row["who"], THROUGHPUT_GOALS[row["who"]], Figure(**row["per_second_times"]))
    alone = f"`/rank` over {size:,}, 1 caller"
    of_one = {row["who"]: row for row in reversed(rows) if (row["candidates"], row["callers"]) == (size, 1)}
    if peer := of_one.get(LATENCY_PEER):
        for of in ("p50", "p99"):
            yield Goal(f"{alone}: {of}", LATENCY_PEER, LATENCY_GOAL, Figure(**peer[f"{of}_times"]))
    if overhead := of_one.get(OURS, {}).get("overhead_ms"):
        work = f"{alone}: ms beyond model and search"
        yield Goal(work, "", MOST_OVERHEAD_MS, Figure(**overhead), at_most=True)


def _named(work: str, threads: int) -> str:
    return f"{work}, {threads} thread{'s' if threads > 1 else ''}"
