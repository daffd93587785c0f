"""`polyrank evaluate` of a classifier: how often it tells the class that an example has."""

from pathlib import Path
from typing import Any

import numpy as np

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.rankings import ReportProgress
from polyrank.model.inference.runners import Runner
from polyrank.model.metrics import Ties
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.load import load_classifier
from polyrank.service.cli.evaluation.examples import classed_examples
from polyrank.service.cli.evaluation.tasks import Example, TaskResult, conversation_texts, dialogue_numbers, tied_first
from polyrank.service.cli.models import REFERENCE, load

_AT_ONCE = 64


class ClassesTask:
    """Tells the class of each example's context and response.

    Figures: accuracy, and log_loss, the mean of -log of the right class's probability.
    """

    unit = "dialogues"

    def __init__(self, data: Path, limit: int | None, runner: Runner = REFERENCE) -> None:
        self._runner = runner
        self._examples, assumed = classed_examples(data, limit)
        self.groups = dialogue_numbers(self._examples, assumed)
        self.described: dict[str, Any] = {}

    def load(self, name: str) -> Classifier:
        """Load a classifier that knows all classes of the examples."""
        classifier = load(load_classifier, name, self._runner)
        if unknown := sorted({each.category for each in self._examples} - set(classifier.labels)):
            raise InvalidInput(f"{name} knows no class {unknown[0]!r}; its classes: {', '.join(classifier.labels)}")
        single = sum(each.is_single_text for each in self._examples)
        if single != (0 if classifier.reads_pairs else len(self._examples)):
            kind = "pairs" if classifier.reads_pairs else "single texts"
            raise InvalidInput(
                f"{name} tells classes of {kind}; {single} of {len(self._examples)} examples are single texts"
            )
        return classifier

    def measure(self, ranker: Classifier, report: ReportProgress) -> TaskResult:
        """Measure how often, and how surely, the right class is told."""
        told = []
        for start in range(0, len(self._examples), _AT_ONCE):
            some = self._examples[start : start + _AT_ONCE]
            told.append(ranker.of_examples(some))
            report("classify", start + len(some), len(self._examples))
        probabilities = np.concatenate(told).astype(np.float64)
        right = np.array([ranker.labels.index(each.category) for each in self._examples])
        best = probabilities.argmax(axis=1)
        of_right = probabilities[np.arange(len(right)), right]
        ties = [Ties.of(own, np.arange(len(own)) == gold) for own, gold in zip(probabilities, right, strict=True)]
        values = {
            "accuracy": np.array([each.found(1) for each in ties]),
            "log_loss": -np.log(np.maximum(of_right, np.finfo(np.float32).tiny)),
        }
        lines = [
            {"example": number, "label": ranker.labels[gold], "told": ranker.labels[own], "probabilities": row}
            for number, (gold, own, row) in enumerate(zip(right, best, probabilities, strict=True))
        ]
        return TaskResult(values, lines, [ranker.labels[own] for own in best], tied_first(ties))

    def example(self, place: int) -> Example:
        """Return a pair of texts and its class."""
        example = self._examples[place]
        return Example([*conversation_texts(example.conversation), ("response", example.response)], example.category)
