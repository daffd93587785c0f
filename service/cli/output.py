"""Prints results on standard output, and progress on standard error."""

import argparse
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import RankingError
from polyrank.model.telling import told_meanwhile, told_now
from polyrank.service.observe.logs import harmless

if TYPE_CHECKING:
    from tqdm import tqdm

# A build encodes and appends in turns, with the same numbers; two bars would begin anew with every turn.
_NOT_SHOWN = {"append"}
_KEPT = {"encode", "train"}  # bars that stay on the screen
_STAGE_NAMES = {  # stages that are not called by what they do
    "": "at work",
    "words": "counting words",
    "resume": "reading what a killed build has left",
    "choose": "timing searches, to choose an index",
    "index": "making the index",
    "recall": "measuring the index",
    "manifest": "checking the files",
    "redis": "copying to Redis",
    "rename": "publishing",
    "CURRENT": "activating",
}

# tqdm's own, with another time left.
_BAR = "{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} [{{elapsed}}<{left}, {{rate_fmt}}{{postfix}}]"

_AGAIN_SECONDS = 0.01


class UsageError(RankingError):
    """The arguments can be parsed but make no sense together."""


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`; `print_result` heeds it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def print_result(arguments: argparse.Namespace, facts: Mapping[str, Any], *lines: str) -> None:
    """Print the facts as JSON if `--json` was given, and the lines otherwise."""
    if arguments.json:
        print_json(facts)
    else:
        for line in lines:
            print(harmless(line))


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object as the last line of standard output."""
    import orjson

    sys.stdout.write(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY).decode() + "\n")
    sys.stdout.flush()


def seconds_of(arguments: argparse.Namespace) -> float:
    """Return how many seconds the command has taken so far."""
    return time.monotonic() - float(arguments.began)


class Progress:
    """Shows how far work is: a bar with rate and time left on a terminal, plain lines elsewhere.

    Use it as a context manager, and call it with stage, done and total, and with figures to be seen beside them.
    """

    def __init__(self, unit: str, **units: str) -> None:
        """`units` are those of stages that have another one, by their first word."""
        self._unit, self._units = unit, units
        self._bar: tqdm[Any] | None = None
        self._latest: tuple[str, int, int | None, str] = ("", 0, 1, "")
        self._seconds_left: float | None = None
        self._began = self._at = time.monotonic()  # of the stage, and of the latest call
        self._first = 0
        self._telling = ExitStack()

    def __enter__(self) -> "Progress":
        self._telling.enter_context(told_meanwhile(self._tell))
        return self

    def __exit__(self, *_: object) -> None:
        self._telling.close()
        self._close_bar()

    def __call__(self, stage: str, done: int, total: int | None, figures: str = "", left: float | None = None) -> None:
        """Show how far the stage is.

        left: seconds that are left, of this stage or of more; infinite: nobody can tell yet; None: as the rate says.
        """
        if stage in _NOT_SHOWN:
            return
        self._at = time.monotonic()
        if stage != self._latest[0]:
            self._began, self._first = self._at, done  # already done by a build that was killed
        self._latest, self._seconds_left = (stage, done, total, figures), left
        if sys.stderr.isatty():
            self._draw()

    def say(self, line: str) -> None:
        """Print a line for the user, above the bar if there is one."""
        told_now()
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)

    def line(self) -> str:
        """Say how far the stage is."""
        stage, done, total, figures = self._latest
        name, seconds, waits = _STAGE_NAMES.get(stage, stage), self._at - self._began, time.monotonic() - self._at
        if done == self._first or not seconds:
            of = f"{done} of {total}, " if total is not None and total > 1 else ""
            return f"{name}: {of}{seconds + waits:.0f} s  {figures}".rstrip()
        rate = (done - self._first) / seconds
        of = f" of {total}" if total else ""
        left = (total - done) / rate if total and self._seconds_left is None else self._seconds_left
        if left is not None and math.isfinite(left):
            of += f", {max(0.0, left - waits):.0f} s left"
        speed = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{name}: {done}{of} ({speed} {self._unit_of(stage)}/s)  {figures}".rstrip()

    def _unit_of(self, stage: str) -> str:
        return self._units.get(stage.partition(" ")[0], self._unit)

    def _tell(self) -> None:
        if self._bar is not None:
            self._bar.refresh()  # its clock goes on
        else:
            print(self.line(), file=sys.stderr, flush=True)

    def _draw(self) -> None:
        from tqdm import tqdm

        stage, done, total, figures = self._latest
        form = "{desc}: {elapsed}" if total is None and not done else None  # None: tqdm's own
        if self._seconds_left is not None:
            left = tqdm.format_interval(max(0.0, self._seconds_left)) if math.isfinite(self._seconds_left) else "?"
            form = _BAR.format(left=left)
        if self._bar is None or self._bar.desc.rstrip(": ") != _STAGE_NAMES.get(stage, stage):
            self._close_bar()
            name, stays, unit = _STAGE_NAMES.get(stage, stage), stage in _KEPT, f" {self._unit_of(stage)}"
            size = get_terminal_size()  # which is not 0 where a terminal says so: tqdm would show nothing
            shape: dict[str, Any] = {"bar_format": form, "ncols": size.columns, "nrows": size.lines}
            self._bar = tqdm(desc=name, total=total, initial=done, leave=stays, unit=unit, **shape)
        self._bar.bar_format, self._bar.total = form, total
        if figures:
            self._bar.set_postfix_str(figures, refresh=False)
        if done > self._bar.n:
            self._bar.update(done - self._bar.n)
        else:
            self._bar.refresh()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """Raise KeyboardInterrupt again where Python drops it; for the main thread.

    Python prints and forgets an interrupt that arrives while a destructor or the callback of a weak reference runs
    (`sys.unraisablehook`), and the command would go on. Here an alarm sends it again, until it reaches code that it can
    end.
    """
    previous_hook, previous_alarm = sys.unraisablehook, signal.signal(signal.SIGALRM, signal.default_int_handler)

    def send_again(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            previous_hook(dropped)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_alarm)
        sys.unraisablehook = previous_hook
