"""Write the results of the comparisons into docs/measurements/peers.md, between two marks, and draw the plots.

python -m benchmarks.peers.report [--results DIR] [--cache DIR]
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.drive import REPOSITORY, table
from benchmarks.peers.compare import CALL_COLUMNS, RESULTS, SERVER_COLUMNS, in_words
from benchmarks.peers.contest import limits
from benchmarks.peers.environments import CACHE, python_of
from benchmarks.peers.goals import Goal, of_calls, of_servers
from benchmarks.peers.ratios import OURS

PAGE = REPOSITORY / "docs" / "measurements" / "peers.md"
FIGURES = REPOSITORY / "docs" / "figures"
BEGIN, END = "<!-- peers: written by benchmarks.peers.report -->", "<!-- peers: end -->"


def section(results: dict[str, dict[str, Any]]) -> str:
    """Format the tables of all available results in Markdown."""
    calls = [row for name in ("encode", "rerank") if name in results for row in results[name]["rows"]]
    ranked = results.get("rank", {}).get("rows", [])
    goals = [*of_calls(calls), *of_servers(ranked)]
    parts = [_goals(goals), *(_told(name, result) for name, result in results.items())]
    if calls:
        parts += [_table(calls, CALL_COLUMNS)]
    if ranked:
        parts += [
            _table(ranked, SERVER_COLUMNS),
            "![throughput](../figures/throughput.svg) ![latency](../figures/latency.svg)",
        ]
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
    abouts = [row["about"] for row in result["rows"] if row["who"] == OURS and "about" in row] or [result]
    ours = sorted({f"`{about['backend']}` in {about['precision']}" for about in abouts})
    return f"`{name}`: {told}, seed {result['seed']}; polyrank by {', '.join(ours)}."


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    return table([in_words(row) for row in rows], columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default: {CACHE}")
    options = parser.parse_args()
    files = {name: options.results / f"{name}.json" for name in ("encode", "rerank", "rank")}
    results = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    PAGE.write_text(replaced(PAGE.read_text(), section(results)))
    if "rank" in results:
        python = python_of("figures", options.cache)
        command = [python, "-m", "benchmarks.peers.draw", files["rank"], FIGURES]
        subprocess.run(command, check=True, cwd=REPOSITORY, env=limits(1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
