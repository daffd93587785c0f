"""Draw the results of the servers as SVG: throughput by number of callers, latency by size of the pool.

    python -m benchmarks.peers.draw RESULTS/rank.json FOLDER

Runs in the environment `figures`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "polyrank", "font.size": 10, "axes.grid": True}

Row = Mapping[str, Any]


def line(axes: Any, rows: Sequence[Row], x: str, y: str, label: str, style: str = "o-") -> None:
    """Draw medians, with bars from the smallest to the largest of the rounds."""
    rows = sorted(rows, key=lambda row: row[x])
    middle = [row[y]["median"] for row in rows]
    below = [row[y]["median"] - row[y]["low"] for row in rows]
    above = [row[y]["high"] - row[y]["median"] for row in rows]
    axes.errorbar([row[x] for row in rows], middle, [below, above], fmt=style, label=label, capsize=3)


def plot(file: Path, title: str, labels: tuple[str, str], draw: Callable[[Any], None]) -> None:
    """Write one figure with a logarithmic x-axis."""
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    draw(axes)
    axes.set(xscale="log", xlabel=labels[0], ylabel=labels[1], title=title)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    crowd = max(row["callers"] for row in rows)
    size = next(row["candidates"] for row in rows if row["callers"] == crowd)
    many = [row for row in rows if row["candidates"] == size]

    def throughput(axes: Any) -> None:
        for who in dict.fromkeys(row["who"] for row in many):
            line(axes, _of_callers([row for row in many if row["who"] == who]), "callers", "per_second", who)

    def latency(axes: Any) -> None:
        for who in dict.fromkeys(row["who"] for row in rows if row["candidates"] != size):
            found = _of_sizes([row for row in rows if row["who"] == who and row["callers"] == 1])
            line(axes, found, "candidates", "p50_ms", f"{who}, p50")
            line(axes, found, "candidates", "p99_ms", f"{who}, p99", "s--")

    plot(folder / "throughput.svg", f"{size:,} candidates", ("callers at a time", "requests a second"), throughput)
    plot(folder / "latency.svg", "One caller", ("candidates", "milliseconds"), latency)
    return 0


def _of_callers(rows: Sequence[Row]) -> list[Row]:
    return list({row["callers"]: row for row in reversed(rows)}.values())


def _of_sizes(rows: Sequence[Row]) -> list[Row]:
    return list({row["candidates"]: row for row in rows}.values())


if __name__ == "__main__":
    sys.exit(main())
