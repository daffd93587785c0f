"""`polyrank pretrain`: teach a base model the words and the turns of conversations."""

import argparse
from pathlib import Path
from typing import Any

from polyrank.model.errors import InvalidInput
from polyrank.model.options import Option, options_of
from polyrank.model.training.config import SCORE_FIELDS, PretrainConfig
from polyrank.model.training.recipes import PRETRAINING, RECIPES
from polyrank.service.cli.models import usage
from polyrank.service.cli.output import UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import add_options_of, given
from polyrank.service.cli.training import TrainLog, add_files_read, data_of, need_packages, print_survey

# Settings of what it has not: adapters, vectors, listed negatives.
_APART = ("task", "negatives", "extra_replies", "optimizer", "patience", "lora_rank", "gradient_cache")
_NOT_ASKED = {*_APART, *SCORE_FIELDS}
_DESCRIPTION = """Teach a base model conversations: to guess masked words, and to tell right replies from others. Writes
a base model, which `polyrank train --base` takes for any architecture."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("pretrain", help="teach a base model conversations", description=_DESCRIPTION)
    add = parser.add_argument
    add("--data", required=True, nargs="+", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    add("--base", required=True, help="base model, or a checkpoint to go on from")
    add("--output", required=True, type=Path, help="directory of the base model; new or empty")
    add("--resume", action="store_true", help="go on with the unfinished run in --output")
    add_json_option(parser)
    add_files_read(add)
    recipes = tuple(name for name, settings in RECIPES.items() if PRETRAINING in settings)
    add_options_of(add, _options(), recipe=recipes)
    parser.set_defaults(run=run)


def _options() -> list[Option]:
    return [each for each in options_of(PretrainConfig) if each.name not in _NOT_ASKED]


def run(arguments: argparse.Namespace) -> int:
    """Pre-train, and say where the base model is."""
    need_packages()
    _check(arguments)
    from polyrank.model.training.pretraining import pretrain

    try:
        config = PretrainConfig.with_recipe(base=arguments.base, **given(arguments, _options()))
    except InvalidInput as error:
        raise UsageError(f"{error}") from error
    with TrainLog() as log:
        data = data_of(arguments, arguments.data)
        told = pretrain(config, data, arguments.output, resume=arguments.resume, on_survey=print_survey, watch=log)
    if told is None:  # the main process reports
        return 0
    result = {"output": str(arguments.output), **told}
    did = f"pre-trained {told['steps']} steps in {told['seconds']} s; give it to `polyrank train --base`"
    print_result(arguments, result, f"{arguments.output}: {did}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse files and models that are none before torch is imported."""
    from polyrank.model.checkpoint.kind import architecture_of, require_network
    from polyrank.model.text.dialogues import read_dialogues

    architecture_of(arguments.base)
    with usage():
        require_network(arguments.base)
    for file in arguments.data:
        read_dialogues(file)
