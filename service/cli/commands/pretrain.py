"""`polyrank pretrain`: teach a base model the words and the turns of conversations."""

import argparse
from pathlib import Path
from typing import Any, get_args

from polyrank.model.errors import InvalidInput
from polyrank.model.training.recipes import PRETRAINING, RECIPES
from polyrank.model.training.schedule import Schedule
from polyrank.service.cli.models import check_trainable
from polyrank.service.cli.output import UsageError, add_json_option, print_result
from polyrank.service.cli.training import TrainLog, bounded, data_of, need_packages, print_survey

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
    add("--weights", nargs="+", type=bounded("weights"), metavar="W", help="weights of the files; default: their sizes")
    add("--every-turn", action="store_true", help="make an example of every reply, not only of the last")
    add(
        "--held-out",
        type=bounded("held_out"),
        default=1000,
        metavar="N",
        help="examples of a file to select by; default: 1000",
    )
    add(
        "--max-rejected",
        type=bounded("max_rejected"),
        default=0.01,
        metavar="SHARE",
        help="of bad lines; default: 0.01",
    )
    _add_recipe(add)
    parser.set_defaults(run=run)


def _add_recipe(add: Any) -> None:
    recipes = tuple(name for name, settings in RECIPES.items() if PRETRAINING in settings)
    recipe = "a paper's settings instead of the defaults, which are ours; what you give goes before them"
    add("--recipe", choices=recipes, help=recipe)
    add("--steps", type=bounded("steps"), help="default: as --epochs says")
    add("--epochs", type=bounded("epochs"), help="default: 1")
    add("--batch-size", type=bounded("batch_size"), help="default: 32")
    add("--accumulate", type=bounded("accumulate"), metavar="N", help="batches a step; default: 1")
    tokens = "tokens of a batch, whose number of examples then follows; default: 0, --batch-size counts"
    add("--batch-tokens", type=bounded("batch_tokens"), metavar="N", help=tokens)
    turns = "batches learn words and replies in turns; default: each learns both"
    add("--alternate", action=argparse.BooleanOptionalAction, help=turns)
    add("--mask-share", type=bounded("mask_share"), metavar="SHARE", help="of the words to mask; default: 0.15")
    add("--learning-rate", type=bounded("learning_rate"), metavar="R", help="default: 1e-4")
    add(
        "--code-learning-rate",
        type=bounded("code_learning_rate"),
        metavar="R",
        help="of both heads, which are not kept; default: 1e-3",
    )
    add("--weight-decay", type=bounded("weight_decay"), help="default: 0.01")
    add("--beta2", type=bounded("beta2"), help="of the optimizer; default: 0.999")
    add("--warmup-steps", type=bounded("warmup_steps"), metavar="N", help="default: 100")
    add("--schedule", choices=get_args(Schedule), help="default: linear")
    add("--looks", type=bounded("looks"), metavar="N", help="looks at the selection slice an epoch; default: 2")
    add("--dropout", type=bounded("dropout"), help="default: the base model's")
    add("--seed", type=bounded("seed"), help="default: 0")
    add("--tune", help="all (default), all-but-embeddings, top-N")
    add("--chunk-tokens", type=bounded("chunk_tokens"), metavar="N", help="padded tokens read at a time; default: 4096")
    add("--gradient-checkpointing", action="store_true", help="one layer's activations at a time")
    add("--precision", choices=("no", "bf16", "fp16"), help="default: no")
    add("--max-context-tokens", type=bounded("max_context_tokens"), metavar="N", help="default: 256")
    add("--max-candidate-tokens", type=bounded("max_candidate_tokens"), metavar="N", help="default: 72")
    add("--max-turns", type=bounded("max_turns"), metavar="N", help="history window; default: what the tokens allow")


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
