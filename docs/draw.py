"""Draw the figures of docs/ from committed JSON. `make figures` runs it, in an environment with matplotlib.

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
MODELS = {"untrained": LIGHT, "chat-bi": ORANGE, "chat-poly": BLUE, "chat-uni": GREEN}
# Name in benchmarks/results/encode.json -> precision. polyrank's own rows tell theirs.
PEERS = {
    "torch": "float32",
    "onnx": "float32",
    "openvino-f32": "float32",
    "torch-bf16": "bfloat16",
    "openvino-f16": "bfloat16",  # as `openvino` does here, and a little faster
}
STYLES = {
    "bi": (GREY, "-"),
    "poly": (GREY, "--"),
    "colbert": (GREEN, "-"),
    "mix-a": (BLUE, "-"),
    "mix-b": (BLUE, "--"),
    "mix-c": (BLUE, ":"),
    "virt": (GREEN, "--"),
    "deformer": (ORANGE, "--"),
    "cross": (ORANGE, "-"),
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
    rows, size = _servers()
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
        bars = _bars([row for row in rows if row["work"] == work])
        for place, (name, ms) in bars.items():
            axes.barh(place, ms["median"], 0.7, color=BLUE if name.startswith("polyrank") else LIGHT)
            spread = [[ms["median"] - ms["low"]], [ms["high"] - ms["median"]]]
            axes.errorbar(ms["median"], place, xerr=spread, color="black", capsize=3, lw=1)
            axes.annotate(f"{ms['median']:,.0f}", (ms["high"], place), (6, 0), textcoords="offset points", va="center")
        axes.set_yticks(list(bars), [name for name, _ in bars.values()])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="milliseconds", title=work, xlim=(0, 1.15 * max(ms["high"] for _, ms in bars.values())))
    return figure


def _bars(rows: Sequence[dict[str, Any]]) -> dict[float, tuple[str, dict[str, float]]]:
    """Name and milliseconds of each bar by its place: one group for each precision, polyrank first in each."""
    bars: dict[float, tuple[str, dict[str, float]]] = {}
    place = 0.0
    for precision in ("float32", "bfloat16", "int8"):
        ours = [row for row in rows if row["who"].startswith("polyrank") and row["about"]["precision"] == precision]
        theirs = [row for row in rows if PEERS.get(row["who"]) == precision]
        for row in [*ours[:1], *theirs]:
            bars[place] = f"{row['who'].partition(',')[0].partition('-')[0]}, {precision}", row["ms"]
            place += 1
        place += 0.5
    return bars


def systems() -> Figure:
    """How much better or worse than the Bi-encoder each architecture ranks, and how its time grows."""
    data = _data("systems")
    figure = Figure(figsize=(9, 4.2))
    left, right = figure.subplots(1, 2)
    names = [row["system"] for row in data["quality"][0]["rows"] if "more_mrr" in row]
    for place, (each, colour) in enumerate(zip(data["quality"], (BLUE, ORANGE, GREEN), strict=True)):
        rows = {row["system"]: row for row in each["rows"]}
        for at, name in enumerate(names):
            mean, low, high = rows[name]["more_mrr"]
            style = {"fmt": "o", "ms": 4, "color": colour, "capsize": 2, "label": each["set"] if at == 0 else None}
            left.errorbar(mean, at + 0.24 * (place - 1), xerr=[[mean - low], [high - mean]], **style)
    left.axvline(0, color=GREY, lw=1)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set(xlabel="MRR more than the Bi-encoder's", title="quality")
    left.legend(fontsize=8)
    for row in data["costs"]:
        if row["system"] in STYLES:
            colour, line = STYLES[row["system"]]
            counts, took = ([each[name] for each in row["growth"]] for name in ("candidates", "ms"))
            right.plot(counts, took, marker="o", ms=3, label=row["system"], color=colour, linestyle=line)
    right.set(xscale="log", yscale="log", xlabel="stored candidates", ylabel="milliseconds", title="time of scoring")
    _plain_ticks(right, (50, 1_000, 100_000))
    right.legend(fontsize=7, ncols=2)
    return figure


def shards() -> Figure:
    """How long an answer of so many parts takes, computed from the times of one part's shards."""
    data = _data("shards")["many_parts"]
    figure = Figure(figsize=(9, 3.4))
    both = figure.subplots(1, 2, sharey=True)
    for axes, (which, title) in zip(
        both, (("calm", "all well"), ("unhedged", "one shard of four stalls")), strict=True
    ):
        parts = [each["parts"] for each in data[which]]
        for hedged, line in (("unhedged", "--"), ("hedged", "-")):
            for name, colour in (("p50", BLUE), ("p99", ORANGE)):
                took = [each[hedged][name] for each in data[which]]
                axes.plot(parts, took, marker="o", ms=3, linestyle=line, color=colour, label=f"{name}, {hedged}")
        axes.set(xscale="log", xlabel="parts", title=title)
        _plain_ticks(axes, parts)
    both[0].set(ylabel="milliseconds")
    both[0].set_ylim(bottom=0)
    both[0].legend(fontsize=8)
    return figure


def peers() -> Figure:
    """How many times as fast as each peer polyrank is, with the goals."""
    goals = [goal for goal in json.loads((RESULTS / "goals.json").read_text(encoding="utf-8")) if not goal["at_most"]]
    figure = Figure(figsize=(9, 0.3 * len(goals) + 0.9))
    axes = figure.subplots()
    for place, goal in enumerate(goals):
        reached = goal["reached"]
        axes.barh(place, reached["median"], 0.7, color=BLUE if reached["median"] >= goal["goal"] else LIGHT)
        spread = [[reached["median"] - reached["low"]], [reached["high"] - reached["median"]]]
        axes.errorbar(reached["median"], place, xerr=spread, color="black", capsize=3, lw=1)
        axes.plot([goal["goal"]] * 2, [place - 0.45, place + 0.45], color=ORANGE, lw=2, label="_" * place + "goal")
    axes.axvline(1, color=GREY, lw=1)
    axes.set_yticks(range(len(goals)), [f"{goal['work']}: {goal['against']}".replace("`", "") for goal in goals])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="times as fast as the peer; blue: goal reached")
    axes.legend(loc="lower right")
    return figure


def throughput() -> Figure:
    """Requests a second of each server against the number of callers."""
    rows, size = _servers()
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    for who in dict.fromkeys(row["who"] for row in rows):
        of_callers = {row["callers"]: row for row in reversed(rows) if (row["who"], row["candidates"]) == (who, size)}
        callers = sorted(of_callers)
        _line(axes, callers, [of_callers[each]["per_second"] for each in callers], who)
    axes.set(xscale="log", xlabel="callers at a time", ylabel="requests a second", title=f"{size:,} candidates")
    _plain_ticks(axes, callers)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def latency() -> Figure:
    """Latency of each server that ranks, for one caller against the pool's size."""
    rows, size = _servers()
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    for who in dict.fromkeys(row["who"] for row in rows if row["candidates"] != size):
        of_sizes = {row["candidates"]: row for row in rows if (row["who"], row["callers"]) == (who, 1)}
        sizes = sorted(of_sizes)
        for name, style in (("p50", "o-"), ("p99", "s--")):
            _line(axes, sizes, [of_sizes[each][f"{name}_ms"] for each in sizes], f"{who}, {name}", style=style)
    axes.set(xscale="log", xlabel="candidates", ylabel="milliseconds", title="one caller")
    _plain_ticks(axes, sizes)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _line(
    axes: Axes,
    places: Sequence[float],
    figures: Sequence[dict[str, float]],
    label: str,
    colour: str | None = None,
    style: str = "o-",
) -> None:
    """Medians, with bars from the least to the most of the rounds."""
    middle = [each["median"] for each in figures]
    spread = [[each["median"] - each["low"] for each in figures], [each["high"] - each["median"] for each in figures]]
    axes.errorbar(places, middle, spread, fmt=style, color=colour, label=label, capsize=3)


def _plain_ticks(axes: Axes, values: Sequence[int]) -> None:
    axes.set_xticks(values, [f"{each:,}" for each in values])
    axes.minorticks_off()


def _data(name: str) -> Any:
    return json.loads((FIGURES / "data" / f"{name}.json").read_text(encoding="utf-8"))


def _servers() -> tuple[list[dict[str, Any]], int]:
    """The rows of all servers, and the size of the pool that many callers asked."""
    rows = _results("rank")
    crowd = max(row["callers"] for row in rows)
    return rows, next(row["candidates"] for row in rows if row["callers"] == crowd)


def _results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def main() -> None:
    """Write one SVG for each figure."""
    for draw in (quality, rank, load, search, encode, systems, shards, peers, throughput, latency):
        figure = draw()
        figure.tight_layout()
        figure.savefig(FIGURES / f"{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
