"""A whole training run: survey the files, train, and write the summary into the checkpoint."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from accelerate.utils import broadcast_object_list

from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.checkpoint.lookup import called
from polyrank.model.checkpoint.quantised import QUANTISED_FILE
from polyrank.model.config import ClassFrom, LexicalConfig
from polyrank.model.errors import InvalidInput, TrainingDataInvalid
from polyrank.model.lexical.fit import Files
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.load import load, load_classifier, words_of
from polyrank.model.rankers.networks import Ranker
from polyrank.model.registry import ARCHITECTURES, in_words
from polyrank.model.text.dialogues import Report
from polyrank.model.text.folding import text_key
from polyrank.model.training.config import (
    STATE_FILE,
    Data,
    OneStageTrainConfig,
    PairTrainConfig,
    TrainConfig,
    VectorTrainConfig,
)
from polyrank.model.training.data import (
    Corpus,
    OnProgress,
    WordsInLoss,
    hold_labels,
    no_progress,
    read_labels,
    survey,
)
from polyrank.model.training.loop import Begun, Training, Watch, processes
from polyrank.model.training.objective import AnyObjective
from polyrank.model.training.precision import precision_on
from polyrank.model.training.state import RunProgress, begun_in, read_state
from polyrank.model.training.student import Student, first_stage_config, rescale, start
from polyrank.model.training.weighing import (
    Weighed,
    calibrate,
    calibrate_by_labels,
    lack,
    lack_of_labels,
    looks_to_score,
    scored_labels,
    scored_lists,
    weigh,
)

log = logging.getLogger(__name__)

_RESCALED_BY = 64  # examples of each file; outputs of single texts hardly differ in spread
_READ_AGAIN = 2  # times, to make lists for words, where the examples are not kept
OnSurvey = Callable[[Path, Report], None]
Then = Callable[[Ranker | Classifier], object]
"""Called with a finished checkpoint, when the run has not ended yet."""


def no_more(_model: Ranker | Classifier) -> None:
    """Do no more."""


def train(
    config: TrainConfig,
    data: Data,
    output: Path,
    *,
    resume: bool = False,
    evidence: bool = True,
    on_survey: OnSurvey,
    watch: Watch,
    on_progress: OnProgress = no_progress,
    then: Then = no_more,
) -> Ranker | Classifier | None:
    """Train a model, and write the checkpoint with the least loss on the selection slice.

    `output` is a directory that is empty or does not exist yet, or that of an unfinished run of the same settings,
    which goes on; with `resume` it must be one. Where the run is interrupted, `output` is one of the three again.
    `evidence` says whether words count beside the network, never in a classifier; their weights are fitted on the
    selection slice at the end. Words that do not help are left out, with a warning. A first stage's words count while a
    Cross-encoder is trained, and those of the model `config.words` while a Bi- or Poly-encoder is.
    `on_survey` is called with each file and what it holds, `watch` after every step and every look. `then` is called
    with the checkpoint: the run has ended when it returns.

    Returns:
        The best checkpoint, loaded; None in all but the main one of several processes (`torchrun`).

    Raises:
        OutputInUse, TrainingDataInvalid, TrainingDiverged, OutOfMemory: see polyrank.model.errors.
        InvalidInput: settings that do not go together.
    """
    if isinstance(config, OneStageTrainConfig) and config.words and not evidence:
        raise InvalidInput("words count in the loss or not at all: give --words, or --no-evidence or --recipe")
    config = replace(config, precision=precision_on(processes().device, config.precision))
    ended = to_the_end(partial(_begun, config, data, evidence), output, resume, on_survey, watch, on_progress)
    if ended is None:
        return None
    begun, progress = ended
    # The summary is no part of a checkpoint's identity. What follows the training is left out: a run that was
    # interrupted later may have written that, with other options.
    trained = read_config(output / CONFIG_FILE)
    best = {name: trained.training[name] for name in ("step", "selection")}
    training = {**best, **summary(begun, progress)}
    described = replace(trained, training=training, evidence=None, calibration=None, quantisation=None)
    write_config(output / CONFIG_FILE, described)
    (output / QUANTISED_FILE).unlink(missing_ok=True)
    if config.task == "rank":
        on_progress(f"loading {output.name}", 0, None)
        lists = scored_lists(load(output), [corpus for corpus, _ in begun.corpora], True, on_progress)
        if evidence:
            on_progress("weighing words", 0, None)
            weighed = weigh(lists)
            if why := weighed.objection():
                log.warning("the checkpoint ranks without words: %s", why)
            else:
                _add_evidence(output, weighed)
        on_progress("calibrating", 0, None)
        _add_calibration(output, lists)
    model = load(output) if config.task == "rank" else load_classifier(output)
    then(model)
    (output / STATE_FILE).unlink(missing_ok=True)  # last, so that a run killed before can be resumed
    return model


def to_the_end(
    begin: Callable[[OnProgress], Begun],
    output: Path,
    resume: bool,
    on_survey: OnSurvey,
    watch: Watch,
    on_progress: OnProgress,
) -> tuple[Begun, RunProgress] | None:
    """Run the steps of a training, those that are left of an unfinished one; arguments, errors and None as in `train`.

    The state stays: who calls this removes it when all files are written.
    """
    started = time.monotonic()
    everyone = processes()
    if not everyone.is_main_process:
        on_survey, watch, on_progress = (lambda *_: None,) * 3
    [goes_on] = broadcast_object_list([resume or (output / STATE_FILE).exists()])  # what the main one sees
    state = read_state(output) if goes_on else None
    with begun_in(output) if state is None else nullcontext():
        everyone.wait_for_everyone()  # each checks that the directory is unused before one of them fills it
        begun = begin(on_progress)
        config, corpora = begun.config, begun.corpora
        for corpus, report in corpora:
            on_survey(corpus.path, report)
        if isinstance(config, VectorTrainConfig) and config.teacher:
            for corpus, report in corpora:
                if not report.with_negatives:  # over the gold reply alone a teacher has nothing to teach
                    why = "no example lists negatives, from which a teacher teaches; add them by `polyrank mine`"
                    raise TrainingDataInvalid(f"{corpus.path}: {why}")
        training = Training(begun, output, started)
        if everyone.is_main_process and training.steps <= config.warmup_steps:  # the rate never is what was asked for
            log.warning(
                "the run has %d steps and a warm-up of %d, so it will learn little; "
                "give more examples or epochs, or a shorter --warmup-steps",
                training.steps,
                config.warmup_steps,
            )
        try:
            if state is not None:
                training.restore(state)
            training.run(watch, on_progress)
        finally:
            training.end()
    if not everyone.is_main_process:
        return None
    if training.progress.best_step == 0:
        log.warning("no step lowered the loss on the examples held out: the checkpoint holds the weights of the start")
    return begun, training.progress


def _begun(config: TrainConfig, data: Data, evidence: bool, on_progress: OnProgress) -> Begun:
    """Load what is trained, and read the files; a classifier's settings then name the classes that it found."""
    row, base = ARCHITECTURES[config.architecture], called(config.base)
    if config.task == "rank":
        on_progress(f"loading {base}", 0, None)
        # First, because both refuse wrong settings, and reading the files may take minutes.
        student, score = start(config), _score_in_loss(config) if evidence else None
        began = time.monotonic()
        corpora = surveyed(data, on_progress)
        reading = time.monotonic() - began
        require_no_classes(corpora)
        _rescale(config, student, corpora)
        words = None if score is None else WordsInLoss(score, [corpus for corpus, _ in corpora])
        again = _READ_AGAIN * any(corpus.cached_examples is None for corpus, _ in corpora)
        looks = looks_to_score([report.held_out for _, report in corpora], row.retrieves, config.negatives)

        def after(look_seconds: float) -> float:
            return again * reading + looks * look_seconds

        return Begun(config, student, corpora, _objective(row.objective), words, after)
    if data.every_turn:
        raise InvalidInput("every-turn is for task rank: an earlier turn has no class")
    corpora = surveyed(data, on_progress)
    config = replace(config, labels=_labels(corpora), class_from=_class_from(corpora))
    on_progress(f"loading {base}", 0, None)
    student = start(config)
    _rescale(config, student, corpora)
    return Begun(config, student, corpora, _objective(row.classifier if config.class_from == "head" else row.objective))


def _rescale(config: TrainConfig, student: Student, corpora: Sequence[tuple[Corpus, Report]]) -> None:
    """Re-scale the student's outputs where that is asked for, over contexts that are held out."""
    if isinstance(config, OneStageTrainConfig) and config.output_like:
        held_out = [islice(corpus.examples(selection=True), _RESCALED_BY) for corpus, _ in corpora]
        rescale(student, config.output_like, [example.conversation for example in chain.from_iterable(held_out)])


def _objective(reference: str | None) -> type[AnyObjective]:
    assert reference is not None, "the settings check it"
    objective: type[AnyObjective] = resolve_name(reference)
    return objective


def train_evidence(
    base: str,
    data: Data,
    output: Path,
    *,
    seen: bool,
    on_survey: OnSurvey,
    on_progress: OnProgress = no_progress,
    then: Then = no_more,
) -> Ranker:
    """Fit how much words count beside the network of a model, and write it with these weights.

    `base` is a checkpoint or a base model; its network stays as it is. `seen` says that it was trained on these
    files, so that only their selection slices are used. Other arguments and errors are those of `train`.

    A model that was trained on these files knows dialogues of their kind: words may lose over them and help on others.
    Then a loss is only warned of.

    Raises:
        InvalidInput: also where words do not help, or too few dialogues are there to tell; nothing is written.
    """
    with begun_in(output):
        ranker = _loaded(base, on_progress)
        if seen and not ranker.config.has_network:
            what = in_words(ranker.architecture)
            raise InvalidInput(f"{base} is {what}: no weights have seen the files; give no --seen")
        lists = scored_lists(ranker, _corpora(data, on_survey, on_progress), seen, on_progress)
        on_progress("weighing words", 0, None)
        weighed = weigh(lists)
        if why := weighed.lack() if seen else weighed.objection():
            raise InvalidInput(f"nothing is written: {why}")
        if why := weighed.loss():
            log.warning("%s; the model knows dialogues of this kind, and on others words may help", why)
        ranker.save(output)
        _add_evidence(output, weighed)
        on_progress("calibrating", 0, None)
        _add_calibration(output, lists)
        return _ended(output, then)


def _ended(output: Path, then: Then) -> Ranker:
    ranker = load(output)
    then(ranker)
    return ranker


def train_calibration(
    base: str,
    data: Data,
    output: Path,
    *,
    seen: bool,
    on_survey: OnSurvey,
    on_progress: OnProgress = no_progress,
    then: Then = no_more,
) -> Ranker:
    """Fit what the scores of a model say, and write it with this calibration; everything else stays as it is.

    Arguments and errors are those of `train_evidence`. Where files hold labels (`polyrank feedback export`), they
    alone say what is right; the replies of the other files only tell how rare words are.

    Raises:
        InvalidInput: also where there are too few dialogues; nothing is written.
    """
    with begun_in(output):
        ranker = _loaded(base, on_progress)
        if hold_labels(data.paths):
            if seen:
                raise InvalidInput("the files hold labels, which no model is trained on: give no --seen")
            labels, statistics = read_labels(data.paths, data.max_rejected, on_survey)
            scored = scored_labels(ranker, labels, statistics, on_progress)
            on_progress("calibrating", 0, None)
            calibrated, why = calibrate_by_labels(scored, ranker.config), lack_of_labels(scored)
        else:
            lists = scored_lists(ranker, _corpora(data, on_survey, on_progress), seen, on_progress)
            on_progress("calibrating", 0, None)
            calibrated, why = calibrate(lists, ranker.config), lack(lists)
        if calibrated is None:
            raise InvalidInput(f"nothing is written: {why}")
        ranker.save(output)
        _note(output, "calibration", calibrated.summary(), calibration=calibrated.calibration)
        return _ended(output, then)


def _loaded(base: str, on_progress: OnProgress) -> Ranker:
    on_progress(f"loading {called(base)}", 0, None)
    return load(base)


def _corpora(data: Data, on_survey: OnSurvey, on_progress: OnProgress) -> list[Corpus]:
    corpora = surveyed(data, on_progress)
    require_no_classes(corpora)
    for corpus, report in corpora:
        on_survey(corpus.path, report)
    return [corpus for corpus, _ in corpora]


def _add_evidence(output: Path, weighed: Weighed) -> None:
    """Write the evidence into a checkpoint; a calibration of other scores goes, and the proof of other rankings."""
    (output / QUANTISED_FILE).unlink(missing_ok=True)
    blocks: dict[str, Any] = {"evidence": weighed.evidence, "calibration": None, "quantisation": None}
    _note(output, "evidence", weighed.summary(), **blocks)


def _note(output: Path, name: str, summary: Mapping[str, Any], **blocks: Any) -> None:
    """Change the config of a checkpoint, and say in its training summary how that was found."""
    path = output / CONFIG_FILE
    config = read_config(path)
    write_config(path, replace(config, training={**config.training, name: summary}, **blocks))


def _add_calibration(output: Path, lists: Files) -> None:
    """Write into a checkpoint what its scores say, or warn that this is not known."""
    calibrated = calibrate(lists, read_config(output / CONFIG_FILE))
    if calibrated is None:
        log.warning("scores are not calibrated: %s", lack(lists))
    else:
        _note(output, "calibration", calibrated.summary(), calibration=calibrated.calibration)


def _score_in_loss(config: TrainConfig) -> LexicalScore | None:
    """Return the lexical score beside the network while it is trained: that of a first stage, or as `words` says.

    Raises as `words_of`.
    """
    evidence: LexicalConfig | None = None
    if isinstance(config, PairTrainConfig) and config.first_stage:
        evidence = first_stage_config(Path(config.first_stage)).evidence
    elif isinstance(config, OneStageTrainConfig) and config.words:
        evidence = words_of(config.words)
    return None if evidence is None else LexicalScore(evidence)


def surveyed(data: Data, on_progress: OnProgress) -> list[tuple[Corpus, Report]]:
    """Read the files once, and give them their weights; stages and errors as `survey`."""
    corpora = [survey(path, data.every_turn, data.max_rejected, data.held_out, on_progress) for path in data.paths]
    if not data.weights:
        return corpora
    return [
        (replace(corpus, weight=weight), report) for (corpus, report), weight in zip(corpora, data.weights, strict=True)
    ]


def require_no_classes(corpora: Sequence[tuple[Corpus, Report]]) -> None:
    """Refuse a file of classes for ranking: texts of every class would be taken for right replies."""
    for corpus, report in corpora:
        if set(report.categories) != {""}:
            raise TrainingDataInvalid(
                f"{corpus.path}: its labels are classes; `polyrank train --task classify` learns them"
            )


def _labels(corpora: Sequence[tuple[Corpus, Report]]) -> tuple[str, ...]:
    """Return the classes of all files, sorted; raises TrainingDataInvalid where an example has none."""
    for corpus, report in corpora:
        if missing := report.categories[""]:
            raise TrainingDataInvalid(f"{corpus.path}: {missing} examples have no class; give each a label, as a text")
    labels = sorted(set().union(*(report.categories for _, report in corpora)))
    if len(labels) < 2:
        raise TrainingDataInvalid(f"all examples are of the class {labels[0]!r}; a classifier needs two or more")
    return tuple(labels)


def _class_from(corpora: Sequence[tuple[Corpus, Report]]) -> ClassFrom:
    """Return what tells the classes: a head those of pairs, scores those of single texts.

    Raises TrainingDataInvalid where some examples are pairs and some single texts, or where names of classes of single
    texts differ only in case, white space and encoding: as replies these are the same.
    """
    single = sum(report.single_texts for _, report in corpora)
    if single == 0:
        return "head"
    categories = sum((report.categories for _, report in corpora), Counter[str]())
    if single < categories.total():
        why = f"{single} of {categories.total()} examples have no response"
        raise TrainingDataInvalid(f"{why}: either each is a pair with a response, or each a single text without")
    if twice := [name for name, count in Counter(map(text_key, categories)).items() if count > 1]:
        alike = sorted(name for name in categories if text_key(name) == twice[0])
        raise TrainingDataInvalid(f"the classes {' and '.join(map(repr, alike))} differ only in case and the like")
    return "score"


def summary(begun: Begun, progress: RunProgress) -> dict[str, Any]:
    """Return how a model was made, for its files."""
    return {
        "files": [
            {"name": c.path.name, "examples": r.examples, "held_out": r.held_out, "weight": c.weight}
            for c, r in begun.corpora
        ],
        "settings": begun.config.to_dict(),
        "steps": progress.step,
        "seconds": round(progress.seconds),
    }
