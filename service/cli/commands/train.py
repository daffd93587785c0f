"""`polyrank train`: from dialogues to a checkpoint."""

import argparse
import importlib.util
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from polyrank.model.config import ContextVectors, Reduction, RowStrategy
from polyrank.model.errors import InvalidInput
from polyrank.model.registry import ARCHITECTURES, TRAINED, in_words
from polyrank.service.cli.models import check_trainable, load_late, load_teacher
from polyrank.service.cli.output import UsageError, add_json_option, print_result

if TYPE_CHECKING:
    from tqdm import tqdm

    from polyrank.model.config import CalibrationConfig, EvidenceConfig
    from polyrank.model.rankers.networks import Ranker
    from polyrank.model.training.config import TrainConfig
    from polyrank.model.training.data.corpus import Report
    from polyrank.model.training.run import Data

_PACKAGES = ("accelerate", "peft", "tensorboard")
_TUNE = re.compile(r"all|all-but-embeddings|top-[1-9]\d*")
_LOG_EVERY_SECONDS = 10.0


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("train", help="train a bi-, poly- or cross-encoder on dialogues")
    names = "{" + ",".join(TRAINED) + "}"  # the others are refused with a reason
    help_text = "needed unless --only-evidence or --only-calibration"
    parser.add_argument("--architecture", choices=tuple(ARCHITECTURES), metavar=names, help=help_text)
    parser.add_argument("--base", required=True, help="base model, or a checkpoint to go on from; or lexical")
    parser.add_argument("--output", required=True, type=Path, help="directory of the checkpoint; new or empty")
    parser.add_argument("--resume", action="store_true", help="go on with the unfinished run in --output")
    add_json_option(parser)
    group = parser.add_argument_group
    _add_data(group("data").add_argument)
    _add_recipe(group("recipe (defaults: Humeau et al. 2020)").add_argument)
    _add_evidence(group("evidence of words"))
    _add_memory(group("memory and speed").add_argument)
    _add_model(group("model (not given: as the checkpoint in --base has it, or the default)").add_argument)
    parser.set_defaults(run=run)


def _add_data(add: Any) -> None:
    add("--train", required=True, nargs="+", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    add("--weights", nargs="+", type=float, metavar="W", help="weights of the files; default: their sizes")
    add("--valid", type=Path, metavar="F", help="report figures on these lists when done; never selects")
    add("--every-turn", action="store_true", help="make an example of every reply, not only of the last")
    add("--held-out", type=int, default=1000, metavar="N", help="examples of a file to select by; default: 1000")
    add("--max-rejected", type=float, default=0.01, metavar="SHARE", help="of bad lines; default: 0.01")


def _add_recipe(add: Any) -> None:
    add("--steps", type=int, help="default: as --epochs says")
    add("--epochs", type=float, help="default: 3")
    add("--batch-size", type=int, help="default: 32")
    add("--accumulate", type=int, metavar="N", help="batches a step; default: 1")
    add("--negatives", type=int, metavar="N", help="listed negatives a row; cross: others; default: 7")
    add("--extra-replies", type=int, metavar="N", help="replies of others as negatives, per batch; default: 0")
    add("--retriever", metavar="MODEL", help="cross: ranks the batch's replies, for hard negatives")
    add("--first-stage", metavar="MODEL", help="cross: a poly-encoder to whose scores it adds")
    add("--loss", choices=("listwise", "pointwise"), help="pointwise: cross only")
    add("--teacher", metavar="MODEL", help="a model with a network to distil from")
    add("--first-weight", type=float, metavar="W", help="colbert, mix, virt: of the first stage's own loss; default: 1")
    add("--rows", type=int, metavar="K", help="mix: rows of a candidate; default: 1")
    add("--row-strategy", choices=get_args(RowStrategy), help="mix: what makes rows; default: codes")
    layers = "mix: from 1, or from -1, the last one; default: -1"
    add("--interaction-layers", type=int, nargs="+", metavar="L", help=layers)
    no_residual = "mix, virt: without the first stage's score"
    add("--no-residual", dest="residual", action="store_const", const=False, help=no_residual)
    add("--teacher-weight", type=float, metavar="SHARE", help="default: 0.5")
    add("--learning-rate", type=float, metavar="R", help="default: 5e-5, with --lora-rank 5e-4")
    add("--code-learning-rate", type=float, metavar="R", help="of codes and head; default: 1e-3")
    add("--optimizer", choices=("adamw", "adamax"), help="default: adamw")
    add("--weight-decay", type=float, help="default: 0.01")
    add("--warmup-steps", type=int, metavar="N", help="default: 100")
    add("--schedule", choices=("plateau", "linear", "cosine", "constant"), help="default: plateau")
    add("--looks", type=float, metavar="N", help="looks at the selection slice an epoch; default: 2")
    add("--patience", type=int, metavar="N", help="stop after N looks without improvement; 0: never")
    add("--dropout", type=float, help="default: the base model's")
    add("--seed", type=int, help="default: 0")


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
    add("--lora-rank", type=int, metavar="R", help="train adapters of this rank; 0: the weights")
    add("--chunk-tokens", type=int, metavar="N", help="padded tokens encoded at a time; default: 4096")
    add("--gradient-cache", action="store_true", help="large batches in small memory, exactly")
    add("--gradient-checkpointing", action="store_true", help="one layer's activations at a time")
    add("--precision", choices=("no", "bf16", "fp16"), help="default: no")


def _add_model(add: Any) -> None:
    add("--context-vectors", choices=get_args(ContextVectors), help="default: codes")
    add("--n-codes", type=int, metavar="M", help="default: 64")
    add("--reduction", choices=get_args(Reduction), help="default: mean")
    add("--shared-encoder", action="store_const", const=True, help="one transformer for both sides")
    add("--no-normalize", dest="normalize", action="store_const", const=False, help="as in the paper")
    add("--code-scale", type=float, help="default: 20; the paper: 1")
    add("--score-scale", type=float, help="default: 20; the paper: 1")
    add("--max-context-tokens", type=int, metavar="N", help="default: 256")
    add("--max-candidate-tokens", type=int, metavar="N", help="default: 72")
    add("--max-turns", type=int, metavar="N", help="history window; default: what the tokens allow")


def run(arguments: argparse.Namespace) -> int:
    """Train, and report the figures on --valid."""
    _need_packages()
    _check(arguments)
    ranker = _only_fitted(arguments) if _only_fits(arguments) else _trained(arguments)
    if ranker is None:  # the main process reports
        return 0
    result = {"output": str(arguments.output), "fingerprint": ranker.fingerprint, **ranker.config.training}
    if ranker.config.evidence is not None and not arguments.only_calibration:
        _print_evidence(result["evidence"]["recall_at_1"], ranker.config.evidence)
    if ranker.config.calibration is not None:
        _print_calibration(result["calibration"], ranker.config.calibration)
    if arguments.valid:
        from polyrank.service.cli.commands.evaluate import measure

        result["valid"] = measure(str(arguments.output), arguments.valid)
    did = f"trained {result.get('steps')} steps in {result.get('seconds')} s"
    if _only_fits(arguments):
        did = "fitted the calibration" if arguments.only_calibration else "fitted the evidence and the calibration"
    print_result(arguments, result, f"{arguments.output}: {did}")
    return 0


def _trained(arguments: argparse.Namespace) -> "Ranker | None":
    from polyrank.model.training.run import train

    config = _config(arguments)
    with _Log() as log:
        return train(
            config,
            _data(arguments),
            arguments.output,
            resume=arguments.resume,
            evidence=not arguments.no_evidence,
            on_survey=_print_survey,
            watch=log,
        )


def _only_fits(arguments: argparse.Namespace) -> bool:
    """Whether the network of --base stays as it is."""
    return bool(arguments.only_evidence or arguments.only_calibration)


def _only_fitted(arguments: argparse.Namespace) -> "Ranker":
    from polyrank.model.training.run import train_calibration, train_evidence

    fit = train_calibration if arguments.only_calibration else train_evidence
    return fit(arguments.base, _data(arguments), arguments.output, seen=arguments.seen, on_survey=_print_survey)


def _print_calibration(figures: Mapping[str, float], calibration: "CalibrationConfig") -> None:
    """Say what a threshold does, on standard error."""
    print(
        f"relevance: sigmoid({calibration.slope:.4g} * score {calibration.intercept:+.4g}), "
        f"if {calibration.prior:g} of the texts are right; "
        f"at 0.5 or above are {figures['right_above_half']:.3f} of the right replies and "
        f"{figures['wrong_above_half']:.4f} of the wrong ones, over {figures['lists']} lists",
        file=sys.stderr,
    )


def _print_evidence(figures: Mapping[str, Mapping[str, float]], evidence: "EvidenceConfig") -> None:
    """Say what each feature adds, on standard error."""
    weights = {f"without {name}": weight for name, weight in evidence.weights.items()}
    print(
        "R@1 over held-out lists; the second figure with an earlier turn of the conversation in each:", file=sys.stderr
    )
    for name, figure in figures.items():
        weight = f"  weight {weights[name]:.4g}" if name in weights else ""
        print(f"  {name:<16} {figure['plain']:.3f} {figure['repeats']:.3f}{weight}", file=sys.stderr)


def _need_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}: pip install '.[train]' in polyrank's source")


def _data(arguments: argparse.Namespace) -> "Data":
    from polyrank.model.training.run import Data

    weights = arguments.weights or ()
    try:
        return Data(arguments.train, weights, arguments.every_turn, arguments.max_rejected, arguments.held_out)
    except InvalidInput as error:
        raise UsageError(f"{error}") from error


def _config(arguments: argparse.Namespace) -> "TrainConfig":
    from polyrank.model.training.config import TrainConfig

    names = TrainConfig.option_names()
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if given.get("lora_rank"):
        given.setdefault("learning_rate", 5e-4)
    try:
        return TrainConfig.of(**given)
    except InvalidInput as error:
        raise UsageError(f"{error}") from error


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what the run would notice only after it has read the files, or at its end.

    Files and models that are none are refused before torch is imported.
    """
    from polyrank.model.checkpoint.kind import architecture_of
    from polyrank.model.text.dialogues import read_dialogues

    _check_architecture(arguments)
    if arguments.seen and not _only_fits(arguments):
        raise UsageError("--seen goes with --only-evidence or --only-calibration")
    if not 0 <= arguments.max_rejected <= 1:
        raise UsageError("--max-rejected must be a number between 0 and 1")
    if arguments.tune and not _TUNE.fullmatch(arguments.tune):
        raise UsageError(f"--tune is {arguments.tune!r}; give all, all-but-embeddings or top-N, N layers")
    if arguments.valid:
        _require_candidates(arguments.valid)
    architecture_of(arguments.base)
    if not _only_fits(arguments):
        check_trainable(arguments.base)
    if arguments.teacher:  # the run loads it again, which takes a moment
        load_teacher("--teacher", arguments.teacher)
    if arguments.retriever:
        load_late(arguments.retriever, hint=" as --retriever")
    for file in arguments.train:
        read_dialogues(file)


def _check_architecture(arguments: argparse.Namespace) -> None:
    wanted = arguments.architecture
    if wanted is None and not _only_fits(arguments):
        raise UsageError("give --architecture: " + ", ".join(TRAINED))
    if wanted is not None and wanted not in TRAINED:
        why = f"{wanted} is {in_words(wanted)}: it has no network to train"
        raise UsageError(f"--architecture {why}; fit its words by --only-evidence --base {wanted}")


def _require_candidates(valid: Path) -> None:
    from polyrank.model.text.dialogues import DialoguesInvalid, read_dialogues

    try:
        if not any(example.candidates for example in read_dialogues(valid)):  # most often the first one has some
            raise UsageError(f"--valid: {valid}: no example has `candidates`; there is nothing to rank")
    except DialoguesInvalid as error:
        raise UsageError(f"--valid: {error}") from error


def _print_survey(path: Path, report: "Report") -> None:
    print(f"{path}: {report}", file=sys.stderr)


class _Log:
    """Shows a run on standard error: a bar on a terminal, else the loss from time to time; every look in both cases.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._first: int | None = None
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> "_Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        if self._first is None:
            self._first, self._began = step, time.monotonic()
        values = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        if sys.stderr.isatty():
            self._draw(event, step, steps, values)
        else:
            self._log(event, step, steps, values)

    def _draw(self, event: str, step: int, steps: int, values: str) -> None:
        from tqdm import tqdm

        if self._bar is None:
            self._bar = tqdm(desc="train", total=steps, unit="step", initial=step)
        if event == "look":
            self._bar.write(f"look {step} of {steps}: {values}", file=sys.stderr)
        else:
            self._bar.set_postfix_str(values, refresh=False)
            self._bar.update(step - self._bar.n)

    def _log(self, event: str, step: int, steps: int, values: str) -> None:
        now = time.monotonic()
        if event == "step" and now - self._said < _LOG_EVERY_SECONDS:
            return
        self._said = now
        assert self._first is not None
        done = step - self._first
        left = f", {(now - self._began) / done * (steps - step):.0f} s left" if done else ""
        print(f"{event} {step} of {steps}: {values}{left}", file=sys.stderr, flush=True)
