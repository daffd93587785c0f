"""The root of all errors, and those of models. Errors carry data and know nothing of HTTP.

RankingError
  InvalidInput          the caller's fault; the message may be shown to the caller
    WrongKind           a model of another kind than is wanted
  ModelError
    ModelNotFound       no checkpoint and no base model of that name
    CheckpointInvalid   found, but damaged or not a checkpoint
  (polyrank.index_builder.errors and polyrank.service.errors add their own branches)
"""


class RankingError(Exception):
    """Root of all errors that the project raises on purpose; `str(error)` is one line that says what to do."""


class InvalidInput(RankingError):
    """The caller sent something that cannot be ranked."""


class WrongKind(InvalidInput):
    """A model that scores pairs where vectors are wanted, or the other way round."""


class ModelError(RankingError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """Neither a checkpoint directory nor a base model has this name."""


class CheckpointInvalid(ModelError):
    """The checkpoint is damaged, incomplete or of an unknown format."""
