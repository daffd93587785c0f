"""What the commands that train have in common: how files are read, and what is said meanwhile."""

import argparse
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import InvalidInput
from polyrank.model.options import Bounds
from polyrank.service.cli.output import UsageError
from polyrank.service.cli.parsing import ANY_COUNT, SHARE, Within

if TYPE_CHECKING:
    from tqdm import tqdm

    from polyrank.model.training.data import Report
    from polyrank.model.training.run import Data

_PACKAGES = ("accelerate", "peft", "tensorboard")
_LOG_EVERY_SECONDS = 10.0


def add_files_read(add: Any) -> None:
    """Add the options that say how files of dialogues are read; `data_of` takes them."""
    weights = "weights of the files; default: their sizes"
    add("--weights", nargs="+", type=Within(Bounds(1e-6, 1e6)), metavar="W", help=weights)
    add("--every-turn", action="store_true", help="make an example of every reply, not only of the last")
    some = "examples of a file to select by; default: 1000"
    add("--held-out", type=Within(ANY_COUNT), default=1000, metavar="N", help=some)
    add("--max-rejected", type=Within(SHARE), default=0.01, metavar="SHARE", help="of bad lines; default: 0.01")


def need_packages() -> None:
    """Raise UsageError where the libraries of training are not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}: pip install '.[train]' in polyrank's source")


def data_of(arguments: argparse.Namespace, files: Sequence[Path]) -> "Data":
    """Make of the options what says how files are read; raises UsageError."""
    from polyrank.model.training.run import Data

    weights = arguments.weights or ()
    try:
        return Data(files, weights, arguments.every_turn, arguments.max_rejected, arguments.held_out)
    except InvalidInput as error:
        raise UsageError(f"{error}") from error


def print_survey(path: Path, report: "Report") -> None:
    """Say on standard error what a file holds."""
    print(f"{path}: {report}", file=sys.stderr)


class TrainLog:
    """Shows a run on standard error: a bar on a terminal, else the loss from time to time; every look in both cases.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._first: int | None = None
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> "TrainLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        """Tell of a step or a look; arguments as Watch of polyrank.model.training.loop."""
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
