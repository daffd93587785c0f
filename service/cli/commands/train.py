"""`polyrank train`: from dialogues to a checkpoint; and `polyrank pretrain`: to a base model."""

import argparse
import importlib.util
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.options import Option, options_of
from polyrank.model.registry import ARCHITECTURES, in_words, listed, trainable
from polyrank.model.training.config import MODEL_FIELDS, SCORE_FIELDS, STATE_FILE, Data, PretrainConfig, TrainConfig
from polyrank.model.training.recipes import PRETRAINING, RECIPES
from polyrank.service.cli.arguments import loaded, of_flag, require_writable, wrong_usage
from polyrank.service.cli.commands.quantise import LISTS, examples_of, in_lines, quantised, require_able
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result, seconds_of
from polyrank.service.cli.parsing import add_options_of, values_of

if TYPE_CHECKING:
    from polyrank.model.config import LexicalConfig
    from polyrank.model.rankers.classifier import Classifier
    from polyrank.model.rankers.networks import Ranker
    from polyrank.model.text.dialogues import Report

# Settings of what it has not: adapters, vectors, listed negatives.
_APART = ("task", "negatives", "extra_replies", "optimizer", "patience", "lora_rank", "gradient_cache")
_NOT_ASKED = {*_APART, *SCORE_FIELDS}
_DESCRIPTION = """Teach a base model conversations: to guess masked words, and to tell right replies from others. Writes
a base model, which `polyrank train --base` takes for any architecture."""
_RESUME = "go on with the unfinished run in --output, or refuse"
_PACKAGES = ("accelerate", "tensorboard")
_LIBRARIES = "loading libraries"


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    _add_pretrain(commands)
    parser = commands.add_parser("train", help="train a model that ranks replies, or one that tells classes")
    names = "{" + ",".join(trainable()) + "}"  # the others are refused with a reason
    help_text = "needed unless --only-evidence or --only-calibration"
    parser.add_argument("--architecture", choices=tuple(ARCHITECTURES), metavar=names, help=help_text)
    parser.add_argument("--base", required=True, help="base model, or a checkpoint to go on from; or lexical")
    parser.add_argument("--output", required=True, type=Path, help="directory of the checkpoint; new or empty")
    parser.add_argument("--resume", action="store_true", help=_RESUME)
    quantise_help = "as the last step, quantise it by these other dialogues"
    parser.add_argument("--quantise", nargs="+", type=Path, metavar="F", help=quantise_help)
    parser.add_argument("--report", type=Path, metavar="F", help="write a page with the run's curves, .html")
    parser.add_argument("--push-to-hub", metavar="OWNER/NAME", help="send it to the Hugging Face hub, as private")
    parser.add_argument("--public", action="store_true", help="with --push-to-hub: everybody may read it")
    add_json_option(parser)
    add = parser.add_argument_group("data").add_argument
    add("--train", required=True, nargs="+", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    add_options_of(add, options_of(Data))
    add("--valid", type=Path, metavar="F", help="report figures on these lists when done; never selects")
    _add_settings(parser)
    _add_evidence(parser.add_argument_group("evidence of words"))
    parser.set_defaults(run=run)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    titles = {
        "recipe": "recipe (the defaults are ours)",
        "memory": "memory and speed",
        "model": "model (not given: as the checkpoint in --base has it, or the default)",
    }
    groups = {name: parser.add_argument_group(title).add_argument for name, title in titles.items()}
    for name, (option, having) in TrainConfig.options().items():
        group = "model" if name in MODEL_FIELDS else option.about.get("group", "recipe")
        missing = [each for each in trainable() if each not in having]
        most = f"not {listed(missing, 'or')}: " if missing else ""
        prefix = most if len(missing) < len(having) else f"{', '.join(having)}: "
        add_options_of(groups[group], [option], prefix, recipe=tuple(RECIPES))


def _add_evidence(group: Any) -> None:
    add = group.add_mutually_exclusive_group().add_argument
    add("--no-evidence", action="store_true", help="let words count nothing")
    add("--only-evidence", action="store_true", help="only fit how much words count; the network of --base stays")
    only = "only fit the probability that a score stands for, by labels if there are some"
    add("--only-calibration", action="store_true", help=only)
    seen_help = "with --only-evidence or --only-calibration: --base learnt from these; use what was held out"
    group.add_argument("--seen", action="store_true", help=seen_help)


def run(arguments: argparse.Namespace) -> int:
    """Train, and report the figures on --valid."""
    result, lines = dict[str, Any](), list[str]()
    with _interrupts_explained(arguments.output), _progress() as progress:
        _need_packages()
        _check(arguments, progress)
        progress(_LIBRARIES, 0, None)
        from polyrank.model.training.run import train, train_calibration, train_evidence

        data, output, tell = _data(arguments, arguments.train), arguments.output, partial(_say_survey, progress)
        then = partial(_finish, arguments, progress, result, lines)
        if _only_fits(arguments):
            fit = train_calibration if arguments.only_calibration else train_evidence
            fit(arguments.base, data, output, seen=arguments.seen, on_survey=tell, on_progress=progress, then=then)
        else:
            config, display = _config(arguments), _Display(progress)
            train(
                config,
                data,
                output,
                resume=arguments.resume,
                evidence=not (arguments.no_evidence or config.recipe),
                on_survey=tell,
                watch=display.watch,
                on_progress=display,
                then=then,
            )
    if not result:  # the main process reports
        return 0
    did = f"trained {result.get('steps')} steps"
    if _only_fits(arguments):
        did = "fitted the calibration" if arguments.only_calibration else "fitted the evidence and the calibration"
    result["seconds"] = round(seconds_of(arguments))
    print_result(arguments, result, f"{arguments.output}: {did} in {result['seconds']} s", *lines)
    return 0


def _progress() -> Progress:
    return Progress("examples", train="steps", reading="lines", scoring="texts")


@contextmanager
def _interrupts_explained(output: Path) -> Iterator[None]:
    """Let Ctrl-C say what `output` holds then, and what the same command does with it."""
    try:
        yield
    except KeyboardInterrupt:
        if (output / STATE_FILE).exists():
            raise KeyboardInterrupt(f"{output} holds the unfinished run; the same command goes on with it") from None
        if not output.exists() or not any(output.iterdir()):
            raise KeyboardInterrupt("nothing was written; the same command begins anew") from None
        raise


def _finish(
    arguments: argparse.Namespace,
    progress: Progress,
    result: dict[str, Any],
    lines: list[str],
    model: "Ranker | Classifier",
) -> None:
    """Measure, describe, quantise and send a finished checkpoint, as the arguments say; fill `result` and `lines`."""
    from polyrank.model.checkpoint.card import CARD_FILE, checkpoint_card
    from polyrank.model.durable import write_atomically

    config = model.config
    if config.evidence is not None and not arguments.only_calibration:
        _say_evidence(progress, config.training["evidence"]["recall_at_1"], config.evidence)
    if config.calibration is not None:
        calibration, facts = config.calibration, config.training["calibration"]
        progress.say(
            f"relevance: sigmoid({calibration.slope:.4g} * score {calibration.intercept:+.4g}), "
            f"if {calibration.prior:g} of the texts are right; "
            f"at 0.5 or above are {facts['right_above_half']:.3f} of the right replies and "
            f"{facts['wrong_above_half']:.4f} of the wrong ones, over {facts['lists']} lists"
        )
    figures = None
    if arguments.valid:
        from polyrank.service.cli.commands.evaluate import measure

        progress(f"reading {arguments.valid.name}", 0, None)
        report = measure(str(arguments.output), arguments.valid, progress)
        figures = report.as_object()
        lines.append(report.as_text())
    card = None if figures is None else {**figures, "data": arguments.valid.name}
    write_atomically(
        arguments.output / CARD_FILE, checkpoint_card(config, arguments.output.resolve().name, card).encode()
    )
    result |= {"output": str(arguments.output), "fingerprint": model.fingerprint, **config.training}
    result |= {} if figures is None else {"valid": figures}
    if arguments.quantise:
        proof = quantised(arguments.output, arguments.quantise, LISTS, arguments.seed or 0, progress)
        result["quantisation"] = asdict(proof)
        lines += in_lines(proof)
    if arguments.report:
        from polyrank.service.cli.reports import write_training

        write_training(arguments.report, arguments.output, config.training, figures)
    if arguments.push_to_hub:
        from polyrank.service.cli.commands.export import push

        progress("sending", 0, None)
        result["hub"] = push(arguments.output, arguments.push_to_hub, arguments.public)
        lines.append(f"sent to {result['hub']}")


def _only_fits(arguments: argparse.Namespace) -> bool:
    """Whether the network of --base stays as it is."""
    return bool(arguments.only_evidence or arguments.only_calibration)


def _say_evidence(progress: Progress, figures: Mapping[str, Mapping[str, float]], evidence: "LexicalConfig") -> None:
    weights = {f"without {name}": weight for name, weight in evidence.weights.items()}
    progress.say("R@1 over held-out lists; the second figure with an earlier turn of the conversation in each:")
    for name, figure in figures.items():
        weight = f"  weight {weights[name]:.4g}" if name in weights else ""
        progress.say(f"  {name:<16} {figure['plain']:.3f} {figure['repeats']:.3f}{weight}")


def _config(arguments: argparse.Namespace) -> TrainConfig:
    options = values_of(arguments, (option for option, _ in TrainConfig.options().values()))
    with wrong_usage():
        return TrainConfig.of(architecture=arguments.architecture, base=arguments.base, **options)


def _check(arguments: argparse.Namespace, progress: Progress) -> None:
    """Refuse what the run would notice only after it has read the files, or at its end.

    Files and models that are none are refused before torch is imported.
    """
    from polyrank.model.text.dialogues import read_dialogues

    _check_architecture(arguments)
    _data(arguments, arguments.train)
    if not _only_fits(arguments):
        _config(arguments)
    if arguments.report is not None:
        if _only_fits(arguments):
            curves = "--report shows the curves of a training"
            raise UsageError(f"{curves}; leave out --only-evidence and --only-calibration")
        require_writable("--report", arguments.report, filter(None, (*arguments.train, arguments.valid)))
    if arguments.seen and not _only_fits(arguments):
        raise UsageError("--seen goes with --only-evidence or --only-calibration")
    if arguments.valid:
        progress(f"reading {arguments.valid.name}", 0, None)
        from polyrank.service.cli.examples import classed_examples, listed_examples

        with wrong_usage("--valid: "):  # a file over which nothing can be measured
            _ = (classed_examples if arguments.task == "classify" else listed_examples)(arguments.valid, None)
    _check_models(arguments, progress)
    for file in arguments.train:
        read_dialogues(file)
    _check_hub(arguments)
    if arguments.quantise:
        progress("reading what int8 is tried on", 0, None)
        _check_quantise(arguments)


def _check_models(arguments: argparse.Namespace, progress: Progress) -> None:
    from polyrank.model.checkpoint.lookup import architecture_of, require_network
    from polyrank.model.rankers.load import load_teacher, load_vector_ranker, words_of

    architecture_of(arguments.base)
    if not _only_fits(arguments):
        require_network(arguments.base)
    if arguments.words:
        with of_flag("--words "):
            words_of(arguments.words)
    progress("loading models", 0, None)  # the run loads them again, which takes a moment
    if arguments.teacher:
        loaded(load_teacher, arguments.teacher, before="--teacher ")
    if arguments.retriever:
        loaded(load_vector_ranker, arguments.retriever, after=" as --retriever")
    if arguments.output_like:
        loaded(load_vector_ranker, arguments.output_like, after=" as --output-like")


def _check_quantise(arguments: argparse.Namespace) -> None:
    from polyrank.model.checkpoint.lookup import architecture_of

    if arguments.task == "classify":
        raise UsageError("--quantise goes with models that rank")
    require_able(architecture_of(arguments.base) if _only_fits(arguments) else arguments.architecture)
    examples_of(arguments.quantise, LISTS, arguments.seed or 0)  # too few are told before training


def _check_hub(arguments: argparse.Namespace) -> None:
    """Refuse a --push-to-hub that would fail after the training, or give others what they cannot load."""
    from polyrank.service.cli.commands.export import require_access

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
    from polyrank.model.checkpoint.lookup import LEXICAL, is_checkpoint

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
    architecture = arguments.architecture
    if architecture is None and not _only_fits(arguments):
        raise UsageError("give --architecture: " + ", ".join(trainable()))
    if architecture is not None and architecture not in trainable():
        why = f"{architecture} is {in_words(architecture)}: it has no network to train"
        raise UsageError(f"--architecture {why}; fit its words by --only-evidence --base {architecture}")


def _add_pretrain(commands: Any) -> None:
    parser = commands.add_parser("pretrain", help="teach a base model conversations", description=_DESCRIPTION)
    add = parser.add_argument
    add("--data", required=True, nargs="+", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    add("--base", required=True, help="base model, or a checkpoint to go on from")
    add("--output", required=True, type=Path, help="directory of the base model; new or empty")
    add("--resume", action="store_true", help=_RESUME)
    add_json_option(parser)
    add_options_of(add, options_of(Data))
    recipes = tuple(name for name, settings in RECIPES.items() if PRETRAINING in settings)
    add_options_of(add, _pretrain_options(), recipe=recipes)
    parser.set_defaults(run=_pretrain)


def _pretrain_options() -> list[Option]:
    return [each for each in options_of(PretrainConfig) if each.name not in _NOT_ASKED]


def _pretrain(arguments: argparse.Namespace) -> int:
    from polyrank.model.checkpoint.lookup import architecture_of, require_network
    from polyrank.model.text.dialogues import read_dialogues

    with _interrupts_explained(arguments.output), _progress() as progress:
        _need_packages()
        # Files and models that are none are refused before torch is imported.
        architecture_of(arguments.base)
        require_network(arguments.base)
        data = _data(arguments, arguments.data)
        for file in data.paths:
            read_dialogues(file)
        with wrong_usage():
            config = PretrainConfig.with_recipe(base=arguments.base, **values_of(arguments, _pretrain_options()))
        progress(_LIBRARIES, 0, None)
        from polyrank.model.training.pretraining import pretrain

        display = _Display(progress)
        figures = pretrain(
            config,
            data,
            arguments.output,
            resume=arguments.resume,
            on_survey=partial(_say_survey, progress),
            watch=display.watch,
            on_progress=display,
        )
    if figures is None:  # the main process reports
        return 0
    result = {"output": str(arguments.output), **figures, "seconds": round(seconds_of(arguments))}
    did = f"pre-trained {figures['steps']} steps in {result['seconds']} s; give it to `polyrank train --base`"
    print_result(arguments, result, f"{arguments.output}: {did}")
    return 0


def _need_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}: pip install 'polyrank[train]'")


def _data(arguments: argparse.Namespace, files: Sequence[Path]) -> Data:
    """Make of the options what says how files are read; raises UsageError."""
    with wrong_usage():
        return Data(files, **values_of(arguments, options_of(Data)))


def _say_survey(progress: Progress, path: Path, report: "Report") -> None:
    progress.say(f"{path}: {report}")


class _Display:
    """Shows a run: stages, each look as a line, and steps with the time left, looks under way among them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._steps: tuple[int, int] | None = None  # done and of the run
        self._end = math.inf  # in seconds of `time.monotonic()`
        self._values = ""  # of the latest step

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage == "train":
            self._steps = done, total or 0
        elif stage != "looking":
            self._steps = None
        if self._steps is None:
            self._progress(stage, done, total)
        else:
            self._train(self._values if stage == "train" else f"{stage}: {done} of {total} examples")

    def watch(self, event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        values = "  ".join(f"{name} {value:.4f}" for name, value in figures.items() if name != "seconds_left")
        if event == "look":
            self._progress.say(f"look {step} of {steps}: {values}")
        else:
            self._steps, self._values = (step, steps), values
            self._end = time.monotonic() + figures.get("seconds_left", math.inf)
        if self._steps is not None:
            self._train(self._values)

    def _train(self, figures: str) -> None:
        assert self._steps is not None
        self._progress("train", *self._steps, figures, self._end - time.monotonic())
