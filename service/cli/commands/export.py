"""`polyrank export`: writes a checkpoint in the layout of another library."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import InvalidInput
from polyrank.service.cli.output import UsageError, add_json_option, print_result

if TYPE_CHECKING:
    from polyrank.model.config import ModelConfig

_LAYOUTS = ("sentence-transformers",)
_DESCRIPTION = """Write a bi-encoder for sentence-transformers: the same vectors, in a directory that
SentenceTransformer reads. Other architectures need more than one vector of each side, and are refused."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("export", help="write a bi-encoder for another library", description=_DESCRIPTION)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="directory of a bi-encoder")
    parser.add_argument("--to", required=True, choices=_LAYOUTS, help="the library that is to read it")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="new or empty")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export, and say what the other library does not get."""
    _check(arguments)
    from polyrank.model.checkpoint.exported import export

    config = export(arguments.checkpoint, arguments.output)
    facts = {
        "output": str(arguments.output),
        "layout": arguments.to,
        "routes": ["query", "document"] if config.sides_differ else [],
        "left_out": _left_out(config),
    }
    lines = [f"{arguments.output}: written for {arguments.to}"]
    if facts["routes"]:
        lines.append("contexts and candidates are encoded in two ways: use encode_query and encode_document")
    lines += [f"left out: {each}" for each in _left_out(config)]
    print_result(arguments, facts, *lines)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be exported, before torch is imported."""
    from polyrank.model.checkpoint.files import require_free
    from polyrank.model.checkpoint.kind import is_checkpoint, require_exportable

    name = arguments.checkpoint
    if not is_checkpoint(name):
        raise UsageError(f"{name} is no checkpoint directory; export what `polyrank train` wrote")
    try:
        require_exportable(name)
        require_free(arguments.output)
    except InvalidInput as error:
        raise UsageError(f"{error}") from error


def _left_out(config: "ModelConfig") -> list[str]:
    """Say which parts of the model's scores vectors do not hold."""
    parts = []
    if config.evidence is not None:
        parts.append("words, which count in polyrank's scores: rankings differ")
    if config.calibration is not None:
        parts.append("the calibration, which makes probabilities of scores")
    return parts
