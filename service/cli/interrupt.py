"""Sees that no Ctrl-C is lost."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_AGAIN_SECONDS = 0.01


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
