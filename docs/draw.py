"""Draw the figures of docs/results.md from committed JSON. `make figures` runs it, in an environment with matplotlib.

Data: docs/figures/data/, and the comparisons with other systems in benchmarks/results/.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
FIGURES = DOCS / "figures"
RESULTS = DOCS.parent / "benchmarks" / "results"
BLUE, ORANGE, GREEN, GREY, LIGHT = "#0b5394", "#cc6600", "#38761d", "#666666", "#b7b7b7"
MODELS = {"untrained": LIGHT, "chat-bi": ORANGE, "chat-poly": BLUE, "chat-cross": GREEN}
# Name in benchmarks/results/encode.json -> place and label of its bar.
SIDES = {
    "polyrank": (0, "polyrank, float32"),
    "torch": (1, "torch, float32"),
    "onnx": (2, "onnx, float32"),
    "openvino-f32": (3, "openvino, float32"),
    "polyrank, openvino bfloat16": (4.5, "polyrank, bfloat16"),
    "torch-bf16": (5.5, "torch, bfloat16"),
    "openvino": (6.5, "openvino, bfloat16"),
}

matplotlib.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "polyrank",  # equal data give equal files
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def quality() -> Figure:
    """R@1 of the four models on each set, with 95 % intervals."""
    sets = _data("quality")["sets"]
    figure = Figure(figsize=(8, 3.6))
    axes = figure.subplots()
    for place, each in enumerate(sets):
        for row in each["rows"]:
            at = place + 0.2 * (list(MODELS).index(row["model"]) - 1.5)
            low, high = row["interval"] or (row["r1"], row["r1"])
            axes.bar(at, row["r1"], 0.18, color=MODELS[row["model"]], label=row["model"] if place == 0 else None)
            if row["interval"]:
                axes.errorbar(at, row["r1"], [[row["r1"] - low], [high - row["r1"]]], color="black", capsize=3, lw=1)
            axes.text(at, high + 0.015, f"{row['r1']:.3f}", ha="center", fontsize=8)
    axes.set_xticks(range(len(sets)), [f"{each['set']}\n1 of {each['candidates']}" for each in sets])
    axes.set(ylabel="right reply ranked first", ylim=(0, 1.0))
    axes.grid(axis="x", visible=False)
    axes.legend(ncols=4, loc="upper left", fontsize=9)
    return figure


def rank() -> Figure:
    """Latency of /rank against the pool's size and against the number of callers."""
    rows = _results("rank")
    crowd = max(row["callers"] for row in rows)
    size = next(row["candidates"] for row in rows if row["callers"] == crowd)
    ours = [row for row in rows if row["who"] == "polyrank"]
    sizes = {row["candidates"]: row for row in ours if row["callers"] == 1}
    callers = {row["callers"]: row for row in reversed(ours) if row["candidates"] == size}
    figure = Figure(figsize=(8, 3.4))
    left, right = figure.subplots(1, 2)
    for axes, points in ((left, sizes), (right, callers)):
        for name, label, colour in (("p50_ms", "median", BLUE), ("p99_ms", "99th percentile", ORANGE)):
            _line(axes, sorted(points), [points[each][name] for each in sorted(points)], label, colour)
        axes.set(xscale="log", ylabel="milliseconds")
    left.set(xlabel="replies in the pool", title="one caller", ylim=(0, 70))
    right.set(xlabel="callers at a time", title=f"{size:,} replies", yscale="log", ylim=(10, 4000))
    _plain_ticks(left, sorted(sizes))
    _plain_ticks(right, sorted(callers))
    right.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    left.legend(loc="lower left")
    return figure


def load() -> Figure:
    """Throughput with and without batches, and good answers beyond the capacity."""
    data = _data("load")
    figure = Figure(figsize=(8, 3.4))
    left, right = figure.subplots(1, 2)
    callers = [row["callers"] for row in data["batching"]]
    left.plot(callers, [row["batched"] for row in data["batching"]], "o-", color=BLUE, label="in batches")
    left.plot(callers, [row["one_by_one"] for row in data["batching"]], "s--", color=GREY, label="one by one")
    left.set(xscale="log", xlabel="callers at a time", ylabel="answers a second", ylim=(0, 95), title="batches")
    _plain_ticks(left, callers)
    left.legend()
    sent = [row["sent_per_second"] for row in data["overload"]]
    right.plot(sent, sent, ":", color=GREY, label="requests sent")
    right.plot(sent, [row["good_per_second"] for row in data["overload"]], "o-", color=BLUE, label="good answers")
    right.axhline(data["capacity_per_second"], color=ORANGE, lw=1, label="capacity")
    right.set(xlabel="requests sent a second", ylabel="a second", xlim=(0, 55), ylim=(0, 55), title="overload")
    right.legend(loc="upper left")
    return figure


def search() -> Figure:
    """The exact scan against the paper's products, and how scan and indexes grow."""
    data = _data("search")
    figure = Figure(figsize=(9, 3.4))
    left, right = figure.subplots(1, 2)
    bars = data["exact_of_100000"][::-1]
    for at, row in enumerate(bars):
        left.barh(at, row["ms"], 0.6, color=BLUE if row["who"] == "scan" else LIGHT)
        spread = [[row["ms"] - row["low"]], [row["high"] - row["ms"]]]
        left.errorbar(row["ms"], at, xerr=spread, color="black", capsize=3, lw=1)
        left.text(row["high"] + 8, at, f"{row['ms']:.0f} ms", va="center", fontsize=9)
    names = [row["who"].replace(", ", ",\n").replace("paper's ", "paper's\n") for row in bars]
    left.set_yticks(range(len(bars)), names)
    left.set(xlabel="milliseconds", xlim=(0, 410), title="exact top 10 of 100,000")
    left.grid(axis="y", visible=False)
    styles = ((BLUE, "o-"), (ORANGE, "s--"), (GREEN, "^:"))
    for (who, rows), (colour, style) in zip(data["growth"].items(), styles, strict=True):
        name = who.partition(",")[0]
        right.plot([row["candidates"] for row in rows], [row["ms"] for row in rows], style, color=colour, label=name)
    right.set(xscale="log", yscale="log", xlabel="replies in the pool", ylabel="milliseconds", title="scan and indexes")
    _plain_ticks(right, (10_000, 100_000, 1_000_000))
    right.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
    right.minorticks_off()
    right.legend()
    return figure


def encode() -> Figure:
    """Encoding beside sentence-transformers, grouped by precision; one thread."""
    rows = [row for row in _results("encode") if row["threads"] == 1]
    figure = Figure(figsize=(9, 3.6))
    for axes, work in zip(figure.subplots(1, 2), ("1 context", "32 contexts"), strict=True):
        found = {row["who"]: row["ms"] for row in rows if row["work"] == work}
        for who, (place, _) in SIDES.items():
            ms = found[who]
            axes.barh(place, ms["median"], 0.7, color=BLUE if who.startswith("polyrank") else LIGHT)
            spread = [[ms["median"] - ms["low"]], [ms["high"] - ms["median"]]]
            axes.errorbar(ms["median"], place, xerr=spread, color="black", capsize=3, lw=1)
            axes.annotate(f"{ms['median']:,.0f}", (ms["high"], place), (6, 0), textcoords="offset points", va="center")
        axes.set_yticks([place for place, _ in SIDES.values()], [name for _, name in SIDES.values()])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="milliseconds", title=work, xlim=(0, 1.15 * max(found[who]["high"] for who in SIDES)))
    return figure


def _line(axes: Axes, places: Sequence[float], figures: Sequence[dict[str, float]], label: str, colour: str) -> None:
    """Medians, with bars from the least to the most of the rounds."""
    middle = [each["median"] for each in figures]
    spread = [[each["median"] - each["low"] for each in figures], [each["high"] - each["median"] for each in figures]]
    axes.errorbar(places, middle, spread, fmt="o-", color=colour, label=label, capsize=3)


def _plain_ticks(axes: Axes, values: Sequence[int]) -> None:
    axes.set_xticks(values, [f"{each:,}" for each in values])
    axes.minorticks_off()


def _data(name: str) -> Any:
    return json.loads((FIGURES / "data" / f"{name}.json").read_text(encoding="utf-8"))


def _results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def main() -> None:
    """Write one SVG for each figure."""
    for draw in (quality, rank, load, search, encode):
        figure = draw()
        figure.tight_layout()
        figure.savefig(FIGURES / f"{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
