"""`polyrank pretrain`: teach a base model the words and the turns of conversations."""

import argparse
from pathlib import Path
from typing import Any, get_args

from polyrank.model.errors import InvalidInput
from polyrank.model.training.recipes import PRETRAINING, RECIPES
from polyrank.model.training.schedule import Schedule
from polyrank.service.cli.models import check_trainable
from polyrank.service.cli.output import UsageError, add_json_option, print_result
from polyrank.service.cli.training import TrainLog, add_files_read, add_number, data_of, need_packages, print_survey

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
    _add_recipe(add)
    parser.set_defaults(run=run)


def _add_recipe(add: Any) -> None:
    recipes = tuple(name for name, settings in RECIPES.items() if PRETRAINING in settings)
    recipe = "a paper's settings instead of the defaults, which are ours; what you give goes before them"
    add("--recipe", choices=recipes, help=recipe)
    add_number(add, "--steps", help="default: as --epochs says")
    add_number(add, "--epochs", help="default: 1")
    add_number(add, "--batch-size", help="default: 32")
    add_number(add, "--accumulate", metavar="N", help="batches a step; default: 1")
    tokens = "tokens of a batch, whose number of examples then follows; default: 0, --batch-size counts"
    add_number(add, "--batch-tokens", metavar="N", help=tokens)
    turns = "batches learn words and replies in turns; default: each learns both"
    add("--alternate", action=argparse.BooleanOptionalAction, help=turns)
    add_number(add, "--mask-share", metavar="SHARE", help="of the words to mask; default: 0.15")
    add_number(add, "--learning-rate", metavar="R", help="default: 1e-4")
    add_number(add, "--code-learning-rate", metavar="R", help="of both heads, which are not kept; default: 1e-3")
    add_number(add, "--weight-decay", help="default: 0.01")
    add_number(add, "--beta2", help="of the optimizer; default: 0.999")
    add_number(add, "--warmup-steps", metavar="N", help="default: 100")
    add("--schedule", choices=get_args(Schedule), help="default: linear")
    add_number(add, "--looks", metavar="N", help="looks at the selection slice an epoch; default: 2")
    add_number(add, "--dropout", help="default: the base model's")
    add_number(add, "--seed", help="default: 0")
    add("--tune", help="all (default), all-but-embeddings, top-N")
    add_number(add, "--chunk-tokens", metavar="N", help="padded tokens read at a time; default: 4096")
    add("--gradient-checkpointing", action="store_true", help="one layer's activations at a time")
    add("--precision", choices=("no", "bf16", "fp16"), help="default: no")
    add_number(add, "--max-context-tokens", metavar="N", help="default: 256")
    add_number(add, "--max-candidate-tokens", metavar="N", help="default: 72")
    add_number(add, "--max-turns", metavar="N", help="history window; default: what the tokens allow")


def run(arguments: argparse.Namespace) -> int:
    """Pre-train, and say where the base model is."""
    need_packages()
    _check(arguments)
    from polyrank.model.training.config import PretrainConfig
    from polyrank.model.training.pretraining import pretrain

    names = PretrainConfig.__dataclass_fields__
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    try:
        config = PretrainConfig.with_recipe(**given)
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
    from polyrank.model.checkpoint.kind import architecture_of
    from polyrank.model.text.dialogues import read_dialogues

    architecture_of(arguments.base)
    check_trainable(arguments.base)
    for file in arguments.data:
        read_dialogues(file)
