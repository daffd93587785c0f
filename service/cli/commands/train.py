"""`polyrank train`: from dialogues to a checkpoint."""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import InvalidInput
from polyrank.model.registry import TRAINED, in_words
from polyrank.service.cli.files import require_writable
from polyrank.service.cli.models import check_trainable, load_late, load_teacher
from polyrank.service.cli.output import UsageError, print_result
from polyrank.service.cli.train_options import add_options
from polyrank.service.cli.training import TrainLog, data_of, need_packages, print_survey

if TYPE_CHECKING:
    from polyrank.model.config import CalibrationConfig, EvidenceConfig, ModelConfig
    from polyrank.model.rankers.classifier import Classifier
    from polyrank.model.rankers.networks import Ranker
    from polyrank.model.training.config import TrainConfig

_TUNE = re.compile(r"all|all-but-embeddings|top-[1-9]\d*")


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("train", help="train a model that ranks replies, or one that tells classes")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, and report the figures on --valid."""
    need_packages()
    _check(arguments)
    ranker = _only_fitted(arguments) if _only_fits(arguments) else _trained(arguments)
    if ranker is None:  # the main process reports
        return 0
    result = {"output": str(arguments.output), "fingerprint": ranker.fingerprint, **ranker.config.training}
    if ranker.config.evidence is not None and not arguments.only_calibration:
        _print_evidence(result["evidence"]["recall_at_1"], ranker.config.evidence)
    if ranker.config.calibration is not None:
        _print_calibration(result["calibration"], ranker.config.calibration)
    did = f"trained {result.get('steps')} steps in {result.get('seconds')} s"
    if _only_fits(arguments):
        did = "fitted the calibration" if arguments.only_calibration else "fitted the evidence and the calibration"
    lines = [f"{arguments.output}: {did}"]
    if arguments.valid:
        from polyrank.service.cli.commands.evaluate import measure

        measured = measure(str(arguments.output), arguments.valid)
        result["valid"] = measured.as_object()
        lines.append(measured.as_text())
    _write_card(arguments.output, ranker.config, arguments.valid, result.get("valid"))
    if arguments.report:
        from polyrank.service.cli.reports.training import write_training

        write_training(arguments.report, arguments.output, ranker.config.training, result.get("valid"))
    if arguments.push_to_hub:
        from polyrank.service.cli.hub import push

        result["hub"] = push(arguments.output, arguments.push_to_hub, arguments.public)
        lines.append(f"sent to {result['hub']}")
    print_result(arguments, result, *lines)
    return 0


def _write_card(output: Path, config: "ModelConfig", valid: Path | None, figures: Mapping[str, Any] | None) -> None:
    """Write the model card, with the figures on --valid if there are any."""
    from polyrank.model.checkpoint.card import CARD_FILE, checkpoint_card
    from polyrank.model.durable import write_atomically

    told = None if valid is None or figures is None else {**figures, "data": valid.name}
    write_atomically(output / CARD_FILE, checkpoint_card(config, output.resolve().name, told).encode())


def _trained(arguments: argparse.Namespace) -> "Ranker | Classifier | None":
    from polyrank.model.training.run import train

    config = _config(arguments)
    with TrainLog() as log:
        return train(
            config,
            data_of(arguments, arguments.train),
            arguments.output,
            resume=arguments.resume,
            evidence=not (arguments.no_evidence or config.recipe),
            on_survey=print_survey,
            watch=log,
        )


def _only_fits(arguments: argparse.Namespace) -> bool:
    """Whether the network of --base stays as it is."""
    return bool(arguments.only_evidence or arguments.only_calibration)


def _only_fitted(arguments: argparse.Namespace) -> "Ranker":
    from polyrank.model.training.run import train_calibration, train_evidence

    fit = train_calibration if arguments.only_calibration else train_evidence
    return fit(
        arguments.base,
        data_of(arguments, arguments.train),
        arguments.output,
        seen=arguments.seen,
        on_survey=print_survey,
    )


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


def _config(arguments: argparse.Namespace) -> "TrainConfig":
    from polyrank.model.training.config import TrainConfig

    names = TrainConfig.option_names()
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if given.get("lora_rank") and not given.get("recipe"):
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
    _check_report(arguments)
    if arguments.seen and not _only_fits(arguments):
        raise UsageError("--seen goes with --only-evidence or --only-calibration")
    if arguments.tune and not _TUNE.fullmatch(arguments.tune):
        raise UsageError(f"--tune is {arguments.tune!r}; give all, all-but-embeddings or top-N, N layers")
    if arguments.valid:
        _require_examples(arguments.valid, arguments.task)
    architecture_of(arguments.base)
    if not _only_fits(arguments):
        check_trainable(arguments.base)
    if arguments.teacher:  # the run loads it again, which takes a moment
        load_teacher("--teacher", arguments.teacher)
    if arguments.retriever:
        load_late(arguments.retriever, hint=" as --retriever")
    if arguments.output_like:
        load_late(arguments.output_like, hint=" as --output-like")
    for file in arguments.train:
        read_dialogues(file)
    _check_hub(arguments)


def _check_report(arguments: argparse.Namespace) -> None:
    if arguments.report is None:
        return
    if _only_fits(arguments):
        raise UsageError("--report shows the curves of a training; leave out --only-evidence and --only-calibration")
    require_writable("--report", arguments.report, filter(None, (*arguments.train, arguments.valid)))


def _check_hub(arguments: argparse.Namespace) -> None:
    """Refuse a --push-to-hub that would fail after the training, or give others what they cannot load."""
    from polyrank.service.cli.hub import require_access

    if arguments.public and not arguments.push_to_hub:
        raise UsageError("--public goes with --push-to-hub")
    if not arguments.push_to_hub:
        return
    if (base := _base_referred_to(arguments)) and os.path.isdir(base):
        why = f"the checkpoint would refer to the weights in {base}, which nobody else has"
        raise UsageError(f"--push-to-hub: {why}; train whole weights, without --lora-rank")
    require_access(arguments.push_to_hub)


def _base_referred_to(arguments: argparse.Namespace) -> str | None:
    """Name the base model whose weights the checkpoint would need beside its own; None: it would need none."""
    from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
    from polyrank.model.checkpoint.kind import LEXICAL, is_checkpoint

    if arguments.base == LEXICAL:
        return None
    base: str = arguments.base
    source = read_config(Path(base) / CONFIG_FILE) if is_checkpoint(base) else None
    weights = "base" if source is None else source.weights
    if not _only_fits(arguments):
        weights = "adapter" if arguments.lora_rank else "full"
    if weights == "full":
        return None
    return base if source is None else source.base_name


def _check_architecture(arguments: argparse.Namespace) -> None:
    wanted = arguments.architecture
    if wanted is None and not _only_fits(arguments):
        raise UsageError("give --architecture: " + ", ".join(TRAINED))
    if wanted is not None and wanted not in TRAINED:
        why = f"{wanted} is {in_words(wanted)}: it has no network to train"
        raise UsageError(f"--architecture {why}; fit its words by --only-evidence --base {wanted}")


def _require_examples(valid: Path, task: str | None) -> None:
    """Refuse a file over which nothing can be measured."""
    from polyrank.service.cli.evaluation.examples import classed_examples, listed_examples

    try:
        _ = classed_examples(valid, None) if task == "classify" else listed_examples(valid, None)
    except InvalidInput as error:
        raise UsageError(f"--valid: {error}") from error
