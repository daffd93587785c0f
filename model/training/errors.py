"""Errors of training, under polyrank.model.errors.RankingError."""

from polyrank.model.errors import InvalidInput, ModelError


class TrainingDataInvalid(InvalidInput):
    """The training files hold too few usable examples; the message says what was dropped and why."""


class OutputInUse(InvalidInput):
    """The output directory holds something that this run would overwrite."""


class TrainingDiverged(ModelError):
    """The loss is not a finite number; the best checkpoint so far is kept."""


class OutOfMemory(ModelError):
    """A step did not fit into memory; the message says which setting to lower."""
