"""Draw folded stacks as a flame graph.

    python -m benchmarks.load.flame STACKS OUT.svg

STACKS has lines such as `thread;caller;called 12`, in any unit. Runs in the environment `figures` of the peers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NARROWEST = 0.004  # share of the whole: narrower boxes are not drawn
LETTERS = 170  # that fit into the whole width
COLOURS = {"model/": "#f2a65a", "service/": "#8fb8de", "index_builder/": "#9bc59d"}


class Box(NamedTuple):
    """The time of a function below its callers: left and right end, and depth."""

    left: float
    right: float
    depth: int
    name: str


def boxes(stacks: dict[tuple[str, ...], int], left: float = 0.0, depth: int = 0) -> Iterator[Box]:
    """Yield the boxes of stacks that share their beginning, the widest first."""
    whole: dict[str, dict[tuple[str, ...], int]] = {}
    for stack, count in stacks.items():
        if len(stack) > depth:
            whole.setdefault(stack[depth], {})[stack] = count
    for name, own in sorted(whole.items(), key=lambda each: -sum(each[1].values())):
        right = left + sum(own.values())
        yield Box(left, right, depth, name)
        yield from boxes(own, left, depth + 1)
        left = right


def draw(stacks: dict[tuple[str, ...], int], file: Path) -> None:
    """Draw the boxes that are wide enough to be seen."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "polyrank"}
    whole = sum(stacks.values())
    shown = [each for each in boxes(stacks) if each.right - each.left >= NARROWEST * whole]
    figure = Figure(figsize=(13, 0.22 * (2 + max(each.depth for each in shown))))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, whole), ylim=(-0.5, 0.5 + max(each.depth for each in shown)))
    axes.axis("off")
    for left, right, depth, name in shown:
        colour = next((colour for where, colour in COLOURS.items() if f"({where}" in name), "#dddddd")
        axes.barh(depth, right - left, left=left, height=0.94, color=colour, edgecolor="white", linewidth=0.5)
        share = f"{name.split(' (')[0]} {100 * (right - left) / whole:.0f} %"
        label = share[: int(LETTERS * (right - left) / whole)]
        axes.text(left, depth, f" {label}", va="center", fontsize=8, clip_on=True, parse_math=False)
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    source, file = map(Path, sys.argv[1:])
    stacks: dict[tuple[str, ...], int] = {}
    for line in source.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        if int(count):
            stacks[tuple(stack.split(";"))] = int(count)
    draw(stacks, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
