"""`polyrank quantise`: calibrate a checkpoint for int8, and write into it what that changes."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.options import Bounds
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import ANY_SEED, Within

if TYPE_CHECKING:
    from polyrank.model.config import QuantisationConfig
    from polyrank.model.quantisation.needs import Split

LISTS = 3000
_DESCRIPTION = """Calibrate a checkpoint's transformers for weights and inputs of 8 bits (int8) by NNCF, on 300
conversations of --data, and measure R@1 and MRR in int8 and in float32 over lists of others. Both are written into the
checkpoint. The back-end and precision auto take int8 only where this proves that R@1 stays; --precision int8 takes it
in any case. Give conversations like those that are served, and none that the model was chosen by."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("quantise", help="calibrate a checkpoint for int8", description=_DESCRIPTION)
    add = parser.add_argument
    add("--model", required=True, type=Path, metavar="DIR", help="checkpoint directory, which is written to")
    add("--data", required=True, nargs="+", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    lists_help = f"how many lists prove it; default: {LISTS}"
    add("--lists", type=Within(Bounds(1, 1_000_000)), default=LISTS, metavar="N", help=lists_help)
    add("--seed", type=Within(ANY_SEED), default=0, metavar="N", help="of every draw; default: 0")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Quantise, and print what it changes."""
    _check(arguments.model)
    with Progress("steps") as progress:
        proof = quantised(arguments.model, arguments.data, arguments.lists, arguments.seed, progress)
    print_result(arguments, asdict(proof), *in_lines(proof))
    return 0


def quantised(model: Path, data: Sequence[Path], lists: int, seed: int, progress: Progress) -> "QuantisationConfig":
    """Quantise a checkpoint by dialogues of files; returns what it changes, which is written into it, too."""
    progress("reading", 0, None)
    examples = examples_of(data, lists, seed)
    from polyrank.model.quantisation.run import quantise

    return quantise(model, examples, progress)


def examples_of(data: Sequence[Path], lists: int, seed: int) -> "Split":
    """Read what quantising takes of dialogues; raises InvalidInput where there are too few."""
    from polyrank.model.quantisation.needs import split
    from polyrank.service.cli.examples import read_identified

    return split([read_identified(file)[0] for file in data], lists, seed)


def _check(model: Path) -> None:
    """Refuse a model that cannot be quantised, before torch is imported."""
    from polyrank.index_builder.generation.manifest import MANIFEST_FILE
    from polyrank.index_builder.layout import GENERATIONS
    from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
    from polyrank.model.checkpoint.lookup import is_checkpoint, require_ranker

    if not is_checkpoint(model):
        raise UsageError(f"--model {model} is no checkpoint; give the directory of one, into which int8 is written")
    generation = model.resolve().parent
    if generation.parent.name == GENERATIONS and (generation / MANIFEST_FILE).is_file():
        why = f"--model {model} is a generation's own copy, whose files never change"
        raise UsageError(f"{why}; quantise the checkpoint that it was built from, and build again")
    require_ranker(model)
    require_able(read_config(model / CONFIG_FILE).architecture)


def require_able(architecture: str) -> None:
    """Raise UsageError for an architecture without a transformer, InvalidInput where a package is missing."""
    from polyrank.model.quantisation.needs import require_equipped
    from polyrank.model.registry import ARCHITECTURES, in_words

    if ARCHITECTURES[architecture].encoder is None:
        raise UsageError(f"{in_words(architecture)}; there is no transformer to quantise")
    require_equipped()


def in_lines(proof: "QuantisationConfig") -> list[str]:
    """Say what int8 changes, in lines."""
    lines = [f"int8 beside float32, over {proof.lists} lists of {proof.conversations} conversations:"]
    for name, value, change in (("R@1", proof.recall_at_1, proof.recall_change), ("MRR", proof.mrr, proof.mrr_change)):
        mean, low, high = (100 * each for each in change)
        lines.append(f"{name} {value:.4f}, changed by {mean:+.2f} points [{low:+.2f}, {high:+.2f}]")
    lines.append(", ".join(f"{name} {value:.4f}" for name, value in proof.nearness.items()))
    why = proof.why_not_chosen()
    lines.append(f"auto does not take it: {why}" if why else "auto may take it")
    return lines
