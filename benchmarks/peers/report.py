"""Write the results of the comparisons into docs/measurements/peers.md, between two marks, and draw the figures.

python -m benchmarks.peers.report [--results DIR] [--cache DIR]
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.load.drive import REPOSITORY, table
from benchmarks.peers.compare import RESULTS
from benchmarks.peers.contest import limits
from benchmarks.peers.environments import CACHE, python_of
from benchmarks.peers.goals import Goal, of_results
from benchmarks.peers.ratios import OURS

PARTS = ("quality", "encode", "rerank", "search", "rank")
PAGE = REPOSITORY / "docs" / "measurements" / "peers.md"
BEGIN, END = "<!-- peers: written by benchmarks.peers.report -->", "<!-- peers: end -->"


def section(results: dict[str, dict[str, Any]]) -> str:
    """Format the goals of all available results in Markdown; the files have every time."""
    parts = [_goals(of_results(results)), *(_told(name, result) for name, result in results.items())]
    if "rank" in results:
        parts += ["![throughput](../figures/throughput.svg) ![latency](../figures/latency.svg)"]
    return "\n\n".join(parts)


def replaced(page: str, text: str) -> str:
    """Return the page with the text between its marks replaced.

    >>> replaced(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\\n\\nnew\\n\\n{END} b"
    True
    """
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _goals(goals: Sequence[Goal]) -> str:
    return table([each.row() for each in goals], ("work", "against", "goal", "ratio", "met"))


def _told(name: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    told = f"commit {result['commit']}, {machine['processor']}, {machine['cores']} cores"
    abouts = [row["about"] for row in result["rows"] if row["who"] == OURS and "about" in row]
    ours = sorted({f"`{about['backend']}` in {about['precision']}" for about in abouts})
    runs = f"; `auto` took {', '.join(ours)}" if ours else ""
    return f"`{name}`: {told}, seed {result['seed']}{runs}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default: {CACHE}")
    options = parser.parse_args()
    files = {name: options.results / f"{name}.json" for name in PARTS}
    results = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    PAGE.write_text(replaced(PAGE.read_text(), section(results)))
    goals = [asdict(each) for each in of_results(results)]
    (options.results / "goals.json").write_text(json.dumps(goals, indent=1) + "\n")
    if len(results) == len(PARTS):
        python = python_of("figures", options.cache)
        subprocess.run([python, "docs/draw.py"], check=True, cwd=REPOSITORY, env=limits(1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
