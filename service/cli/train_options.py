"""The options of `polyrank train`."""

import argparse
from argparse import BooleanOptionalAction
from pathlib import Path
from typing import Any, get_args

from polyrank.model.config import ContextVectors, MixPart, Reduction, RowStrategy
from polyrank.model.registry import ARCHITECTURES, TASKS, TRAINED
from polyrank.model.training.recipes import RECIPES
from polyrank.model.training.schedule import Schedule
from polyrank.service.cli.output import add_json_option
from polyrank.service.cli.training import add_files_read, add_number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all of them to the command's parser, in groups by what they are about."""
    names = "{" + ",".join(TRAINED) + "}"  # the others are refused with a reason
    help_text = "needed unless --only-evidence or --only-calibration"
    parser.add_argument("--architecture", choices=tuple(ARCHITECTURES), metavar=names, help=help_text)
    parser.add_argument("--task", choices=TASKS, help="classify: tell the classes of pairs or texts; default: rank")
    parser.add_argument("--base", required=True, help="base model, or a checkpoint to go on from; or lexical")
    parser.add_argument("--output", required=True, type=Path, help="directory of the checkpoint; new or empty")
    parser.add_argument("--resume", action="store_true", help="go on with the unfinished run in --output")
    parser.add_argument("--report", type=Path, metavar="F", help="write a page with the run's curves, .html")
    parser.add_argument("--push-to-hub", metavar="OWNER/NAME", help="send it to the Hugging Face hub, as private")
    parser.add_argument("--public", action="store_true", help="with --push-to-hub: everybody may read it")
    add_json_option(parser)
    group = parser.add_argument_group
    _add_data(group("data").add_argument)
    _add_recipe(group("recipe (the defaults are ours)").add_argument)
    _add_evidence(group("evidence of words"))
    _add_memory(group("memory and speed").add_argument)
    _add_model(group("model (not given: as the checkpoint in --base has it, or the default)").add_argument)


def _add_data(add: Any) -> None:
    add("--train", required=True, nargs="+", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    add_files_read(add)
    add("--valid", type=Path, metavar="F", help="report figures on these lists when done; never selects")


def _add_recipe(add: Any) -> None:
    recipe = "a paper's settings instead of the defaults; words then count nothing. What you give goes before them"
    add("--recipe", choices=tuple(RECIPES), help=recipe)
    add_number(add, "--steps", help="default: as --epochs says")
    add_number(add, "--epochs", help="default: 3")
    add_number(add, "--batch-size", help="default: 32")
    add_number(add, "--accumulate", metavar="N", help="batches a step; default: 1")
    listed = "of the listed negatives, drawn; 0: only those of the batch; cross: any negatives; default: 7"
    add_number(add, "--negatives", metavar="N", help=listed)
    add_number(add, "--extra-replies", metavar="N", help="replies of others as negatives, per batch; default: 0")
    add("--retriever", metavar="MODEL", help="cross: ranks the batch's replies, for hard negatives")
    add("--first-stage", metavar="MODEL", help="cross: a poly-encoder to whose scores it adds")
    add("--loss", choices=("listwise", "pointwise"), help="pointwise: cross only")
    add("--teacher", metavar="MODEL", help="a model with a network to distil from")
    first = "with a second stage: how much the loss of the first one counts; default: 1"
    add_number(add, "--first-weight", metavar="W", help=first)
    add_number(add, "--rows", metavar="K", help="mix: rows of a candidate; default: 1")
    add("--row-strategy", choices=get_args(RowStrategy), help="mix: what makes rows; default: codes")
    layers = "mix: from 1, or from -1, the last one; default: -1"
    add_number(add, "--interaction-layers", nargs="+", metavar="L", help=layers)
    upper = "deformer: layers that read context and candidate together; default: 2"
    add_number(add, "--upper-layers", metavar="U", help=upper)
    add("--without", choices=get_args(MixPart), help="mix: leave out a part of the score, as in the paper's ablation")
    residual = "deformer, mix, virt: the first stage's score is added, as it is by default"
    add("--residual", action=BooleanOptionalAction, help=residual)
    add_number(add, "--teacher-weight", metavar="SHARE", help="default: 0.5")
    add_number(add, "--teacher-temperature", metavar="T", help="by which scores are divided; default: 1")
    inner = "how much it counts to equal the teacher inside; virt: its attention, deformer: its states; default: 0"
    add_number(add, "--inner-weight", metavar="W", help=inner)
    add_number(add, "--learning-rate", metavar="R", help="default: 5e-5, with --lora-rank 5e-4")
    add_number(add, "--code-learning-rate", metavar="R", help="of codes and head; default: 1e-3")
    add("--optimizer", choices=("adamw", "adamax"), help="default: adamw")
    add_number(add, "--weight-decay", help="default: 0.01, with adamax 0")
    add_number(add, "--beta2", help="of the optimizer; default: 0.999")
    add_number(add, "--warmup-steps", metavar="N", help="default: 100")
    add("--schedule", choices=get_args(Schedule), help="default: plateau")
    add_number(add, "--looks", metavar="N", help="looks at the selection slice an epoch; default: 2")
    add_number(add, "--patience", metavar="N", help="stop after N looks without improvement; 0: never")
    like = "bi, poly: begin with outputs of the standard deviation of this model's"
    add("--output-like", metavar="MODEL", help=like)
    add_number(add, "--dropout", help="default: the base model's")
    add_number(add, "--seed", help="default: 0")


def _add_evidence(group: Any) -> None:
    add = group.add_mutually_exclusive_group().add_argument
    add("--no-evidence", action="store_true", help="let words count nothing")
    add("--only-evidence", action="store_true", help="only fit how much words count; the network of --base stays")
    only = "only fit what scores say, for relevance_score; all else of --base stays"
    add("--only-calibration", action="store_true", help=only)
    seen = "with --only-evidence or --only-calibration: --base was trained on these files; use what was held out"
    group.add_argument("--seen", action="store_true", help=seen)


def _add_memory(add: Any) -> None:
    add("--tune", help="all, all-but-embeddings (default), top-N")
    add_number(add, "--lora-rank", metavar="R", help="train adapters of this rank; 0: the weights")
    add_number(add, "--chunk-tokens", metavar="N", help="padded tokens encoded at a time; default: 4096")
    add("--gradient-cache", action="store_true", help="large batches in small memory, exactly")
    add("--gradient-checkpointing", action="store_true", help="one layer's activations at a time")
    add("--precision", choices=("no", "bf16", "fp16"), help="default: no")


def _add_model(add: Any) -> None:
    add("--context-vectors", choices=get_args(ContextVectors), help="default: codes")
    add_number(add, "--n-codes", metavar="M", help="default: 64")
    add("--reduction", choices=get_args(Reduction), help="default: mean")
    add_number(add, "--reduction-m", metavar="M", help="how many outputs 'first-m mean' takes; default: 16")
    add("--shared-encoder", action=BooleanOptionalAction, help="one transformer for both sides; default: two")
    add("--normalize", action=BooleanOptionalAction, help="compare vectors of unit length; default: yes")
    add_number(add, "--code-scale", help="default: 20")
    add_number(add, "--score-scale", help="default: 20")
    add_number(add, "--max-context-tokens", metavar="N", help="default: 256")
    add_number(add, "--max-candidate-tokens", metavar="N", help="default: 72")
    add_number(add, "--max-turns", metavar="N", help="history window; default: what the tokens allow")
