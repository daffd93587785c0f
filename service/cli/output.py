"""Prints results on standard output, and progress on standard error."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import RankingError

if TYPE_CHECKING:
    from tqdm import tqdm

_LOG_EVERY_SECONDS = 5.0
# A build encodes and appends in turns, with the same numbers; two bars would begin anew with every turn.
_NOT_SHOWN = {"append"}
_KEPT = {"encode", "train"}  # bars that stay on the screen

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
            print(line)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object as the last line of standard output."""
    import orjson

    sys.stdout.write(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY).decode() + "\n")
    sys.stdout.flush()


class Progress:
    """Shows how far work is: a bar with rate and time left on a terminal, plain lines elsewhere.

    Use it as a context manager, and call it with stage, done and total, and with figures to be seen beside them.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: tqdm[Any] | None = None
        self._stage = ""
        self._logged = self._began = 0.0
        self._first = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, stage: str, done: int, total: int | None, figures: str = "") -> None:
        """Show how far the stage is."""
        if stage in _NOT_SHOWN:
            return
        if sys.stderr.isatty():
            self._draw(stage, done, total, figures)
        else:
            self._log(stage, done, total, figures)

    def say(self, line: str) -> None:
        """Print a line for the user, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)

    def _draw(self, stage: str, done: int, total: int | None, figures: str) -> None:
        from tqdm import tqdm

        if self._bar is None or self._bar.desc.rstrip(": ") != stage:
            self.__exit__()
            self._bar = tqdm(desc=stage, total=total, unit=self._unit, initial=done, leave=stage in _KEPT)
        if figures:
            self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update(done - self._bar.n)

    def _log(self, stage: str, done: int, total: int | None, figures: str) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._logged = stage, now, now
            self._first = done  # already done by a build that was killed
            return
        if now - self._logged >= _LOG_EVERY_SECONDS:
            self._logged = now
            rate = (done - self._first) / (now - self._began)
            of = f" of {total}, {(total - done) / rate:.0f} s left" if total and rate else ""
            shown = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
            print(f"{stage}: {done}{of} ({shown} {self._unit}/s)  {figures}".rstrip(), file=sys.stderr)


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
