"""`polyrank mine`: find hard negatives for training."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import InvalidInput
from polyrank.model.options import Bounds
from polyrank.service.cli.arguments import add_encoding_option, loaded, of_flag, read_candidates, require_writable
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result, seconds_of
from polyrank.service.cli.parsing import ANY_SEED, SHARE, Within

if TYPE_CHECKING:
    from polyrank.model.evaluation.mining import Tally
    from polyrank.model.text.conversations import Positives
    from polyrank.model.text.dialogues import Dialogue, Report

_DEPTHS = Bounds(1, 1_000_000)
_MARGIN_HELP = """how far a negative stays below the gold reply, as a share of its lead over random texts; or off;
default: 0.05"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("mine", help="find hard negatives for training in a pool")
    add = parser.add_argument
    add("--model", required=True, help="checkpoint directory, base model name, or lexical; no cross-encoder")
    add("--data", required=True, type=Path, help="dialogues, .jsonl[.gz|.zst]")
    add("--pool", required=True, nargs="+", type=Path, help=".jsonl[.gz|.zst], .csv, .parquet or .xlsx files")
    add_encoding_option(parser)
    add("--output", required=True, type=Path, help="the dialogues with new `negatives`, .jsonl[.gz|.zst]")
    add("--negatives", type=Within(_DEPTHS), default=7, metavar="N", help="for each example; default: 7")
    add("--depth", type=Within(_DEPTHS), default=100, metavar="K", help="look at the K best; default: 100")
    add("--skip", type=Within(Bounds(0, _DEPTHS.most)), default=5, metavar="K", help="leave out the K best; default: 5")
    add("--margin", type=_margin, default=0.05, metavar="SHARE", help=_MARGIN_HELP)
    add("--check", metavar="MODEL", help="a cross-encoder that must place negatives below the gold")
    add(
        "--check-margin",
        type=Within(Bounds(-1e6, 1e6)),
        metavar="X",
        help="how far below it must place them; default: 0",
    )
    add("--sample", action="store_true", help="draw from what remains instead of taking the hardest")
    add("--seed", type=Within(ANY_SEED), default=0, help="seed of every draw; default: 0")
    add(
        "--max-rejected",
        type=Within(SHARE),
        default=0.01,
        metavar="SHARE",
        help="most bad lines to leave out; default: 0.01",
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Mine, and say what was found and what was left out."""
    if arguments.skip >= arguments.depth:
        raise UsageError("--skip must be less than --depth, or no text is left")
    if arguments.check_margin is not None and arguments.check is None:
        raise UsageError("--check-margin needs --check")
    require_writable("--output", arguments.output, (arguments.data, *arguments.pool))
    tally = _mine(arguments)
    seconds = seconds_of(arguments)
    reasons = ", ".join(f"{reason} {count}" for reason, count in tally.filtered.items())
    summary = f"{tally.negatives} negatives for {tally.examples} examples in {seconds:.0f} s"
    print(f"{summary}; left out: {reasons}", file=sys.stderr)
    if tally.without:
        print(f"{tally.without} examples have none; a larger --depth leaves more", file=sys.stderr)
    facts = {
        "model": arguments.model,
        "output": str(arguments.output),
        "examples": tally.examples,
        "negatives": tally.negatives,
        "without_negatives": tally.without,
        "filtered": tally.filtered,
        "seconds": round(seconds, 3),
    }
    print_result(arguments, facts)
    return 0


def _mine(arguments: argparse.Namespace) -> "Tally":
    """Write the examples with their negatives; bad files and models are refused before torch is imported."""
    from polyrank.model.checkpoint.lookup import require_pair_scorer, require_retriever
    from polyrank.model.rankers.load import load_cross, load_retriever
    from polyrank.model.text.dialogues import Report, new_dialogues

    with new_dialogues(arguments.output) as write:
        candidates = read_candidates(arguments.pool, arguments.encoding)
        require_retriever(arguments.model)
        if arguments.check is not None:
            with of_flag("--check "):
                require_pair_scorer(arguments.check)
        positives = _read_positives(arguments.data, arguments.max_rejected)
        from polyrank.model.evaluation.mining import Miner, MiningRules, TextPool

        ranker = loaded(load_retriever, arguments.model)
        check = loaded(load_cross, arguments.check, before="--check ") if arguments.check is not None else None
        with Progress("texts") as progress:
            pool = TextPool.encode(ranker, (candidate.text for candidate in candidates), progress)
        rules = MiningRules(
            depth=arguments.depth,
            skip=arguments.skip,
            margin=arguments.margin,
            check_margin=arguments.check_margin or 0.0,
            negatives=arguments.negatives,
            sample=arguments.sample,
            seed=arguments.seed,
        )
        miner = Miner(ranker, pool, positives, rules, check)
        with Progress("examples") as progress:
            progress("mine", 0, len(positives))
            for count, dialogue in enumerate(miner.mine(_good_lines(arguments.data, Report())), 1):
                write(dialogue)
                progress("mine", count, len(positives))
    return miner.tally


def _read_positives(data: Path, max_rejected: float) -> "Positives":
    """Read the examples a first time; says what is left out, and raises TrainingDataInvalid if that is too much."""
    from polyrank.model.text.conversations import Positives
    from polyrank.model.text.dialogues import Report

    report = Report()
    positives = Positives(_good_lines(data, report))
    report.require_few_bad(data, max_rejected)
    if not report.kept:
        raise InvalidInput(f"{data} holds no example; there is nothing to mine for")
    if report.dropped:
        print(f"{data}: {report}", file=sys.stderr)
    return positives


def _good_lines(data: Path, report: "Report") -> Iterator["Dialogue"]:
    """Stream the examples of a file; its bad lines are counted in `report`. Raises InvalidInput for a class."""
    from polyrank.model.text.dialogues import good_lines

    for number, line in good_lines(data, report):
        if line.category:
            raise InvalidInput(f"{data}:{number}: its label is a class; mine for examples of right replies")
        report.kept += 1
        yield line


def _margin(text: str) -> float | None:
    if text == "off":
        return None
    try:
        return Within(SHARE)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or off") from None
