"""The root of all errors, those of models, and `Shortage`. Errors carry data; the class says how it is answered."""

import errno
import os


class RankingError(Exception):
    """Root of all errors that the project raises on purpose; `str(error)` is one line that says what to do.

    Over HTTP an error is a problem (RFC 9457). Its class says which, or one that it descends from.
    """

    # The slug ends the problem's type. With 500 the client gets no message of its own; the log has it.
    status, slug, title = 500, "internal", "The server failed"
    rejected: str | None = None  # why, for the metric of refused requests; None: it is not counted


class InvalidInput(RankingError):
    """The caller sent something that cannot be ranked."""

    status, slug, title = 422, "invalid-input", "The request cannot be used"


class WrongKind(InvalidInput):
    """A model that scores pairs where vectors are wanted, or the other way round."""


class ModelError(RankingError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """Neither a checkpoint directory nor a base model has this name."""


class CheckpointInvalid(ModelError):
    """The checkpoint is damaged, incomplete or of an unknown format."""


class VectorsDamaged(RankingError):
    """A score is not finite, or beyond what the lengths of the vectors allow: they changed since they were prepared."""

    def __init__(self, score: float, limit: float) -> None:
        super().__init__(
            f"a score of {score:g} was found, where the lengths of the vectors allow at most {limit:g}: the file of "
            "the vectors was changed while it was in use; restore it, verify the generation and start anew"
        )


class Shortage(RankingError):
    """The system lacks something for the moment, such as descriptors, memory or room on a disk: try again later."""

    status, slug, title = 503, "shortage", "The system lacks something at the moment"
    retry_after_seconds = 5


# What passes without anybody repairing anything; all else that the system says of a file is said of that file.
_SHORT_OF = (
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS),
    *(errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE),
)
# Libraries in C++ and Rust, and Python's threads, raise errors of their own, which contain these words.
_WORDS = (
    *map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)),
    *("out of memory", "bad_alloc", "can't start new thread"),
)


def shortage_in(error: BaseException | None) -> Shortage | None:
    """Return the shortage that an error, or what it was raised from, tells of; None: it tells of none.

    Whoever turns errors into a lasting refusal asks this first: a sound file is not damaged because it could not be
    opened.
    """
    while error is not None:
        if isinstance(error, Shortage):
            return error
        if isinstance(error, MemoryError):
            return Shortage("the memory is used up; try again")
        if isinstance(error, OSError) and error.errno is not None:
            if error.errno in _SHORT_OF:
                return Shortage(f"the system lacks something for the moment: {os.strerror(error.errno)}; try again")
        elif word := next((word for word in _WORDS if word in str(error)), None):
            return Shortage(f"the system lacks something for the moment: {word}; try again")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


class TrainingDataInvalid(InvalidInput):
    """The training files hold too few usable examples; the message says what was dropped and why."""


class OutputInUse(InvalidInput):
    """The output directory holds something that this run would overwrite."""


class TrainingDiverged(ModelError):
    """The loss is not a finite number; the best checkpoint so far is kept."""


class OutOfMemory(ModelError):
    """A step did not fit into memory; the message says which setting to lower."""
