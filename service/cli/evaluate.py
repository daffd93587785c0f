"""`polyrank evaluate`: how often a model puts the gold reply first."""

import argparse
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from service.cli.output import Progress, UsageError, print_json, quiet_libraries


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("evaluate", help="R@k and MRR of a model over lists of candidates")
    parser.add_argument("--model", required=True, help="checkpoint directory or base model name")
    parser.add_argument("--data", required=True, type=Path, help="dialogues with candidates, .jsonl[.gz|.zst]")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print the figures."""
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError("--limit must be at least 1")
    result = measure(arguments.model, arguments.data, arguments.limit)
    if arguments.json:
        print_json(result)
    else:
        figures = "  ".join(
            f"{name} {result[name]:.3f}" for name in result if name.startswith("recall") or name == "mrr"
        )
        print(f"{result['model']} on {result['examples']} examples: {figures}  ({result['seconds']:.0f} s)")
    return 0


def measure(name: str, data: Path, limit: int | None = None) -> dict[str, Any]:
    """Evaluate a model on a file; returns what `--json` prints."""
    quiet_libraries()
    import model
    from model.dialogues import read_dialogues
    from model.evaluate import RECALL_AT, evaluate

    dialogues = list(islice(read_dialogues(data), limit))
    ranker = model.load(name)
    began = time.perf_counter()
    with Progress("examples") as progress:
        evaluation = evaluate(ranker, dialogues, progress)
    if without := len(dialogues) - len(evaluation.ranks):
        print(f"{without} of {len(dialogues)} examples have no candidates and were left out", file=sys.stderr)
    recalls = {f"recall@{k}": evaluation.recall_at(k) for k in RECALL_AT}
    seconds = round(time.perf_counter() - began, 3)
    return {"model": name, "examples": len(evaluation.ranks), **recalls, "mrr": evaluation.mrr, "seconds": seconds}
