"""`--wait`: a command that has made a generation the active one ends once a running server answers by it."""

import argparse
import time
from functools import partial
from typing import Final

from polyrank.model.telling import telling
from polyrank.service.cli.output import UsageError
from polyrank.service.errors import ServiceUnreachable

MOST_SECONDS: Final = 600.0
PAUSE_SECONDS: Final = 0.2
_ANSWER_SECONDS = 10.0


def add_wait_option(parser: argparse.ArgumentParser) -> None:
    """Add `--wait`; `require_server` and `loading` heed it."""
    parser.add_argument("--wait", metavar="URL", help="end once the server there answers by the generation")


def require_server(arguments: argparse.Namespace) -> None:
    """Ask the server to wait for, before there is work in vain; errors as `_served_generation`."""
    if arguments.wait is not None:
        _served_generation(arguments.wait)


def loading(arguments: argparse.Namespace, generation: str) -> str:
    """Wait for the server, if that is wished; returns how the line ends that says that the generation is active.

    Raises ServiceUnreachable if the server ends, or does not load it in time.
    """
    if arguments.wait is None:
        return "; running servers load it now"
    began, current = time.monotonic(), None
    with telling(f"loading: {arguments.wait} does not answer by {generation} yet"):
        while (current := _served_generation(arguments.wait)) != generation:
            if time.monotonic() - began > MOST_SECONDS:
                by = f"by {current}" if current else "by none"
                raise ServiceUnreachable(
                    f"{generation} is active, but {arguments.wait} still answers {by} after {MOST_SECONDS:g} s; "
                    "its log says why"
                )
            time.sleep(PAUSE_SECONDS)
    return f"; {arguments.wait} answers by it {time.monotonic() - began:.1f} s later"


def _served_generation(url: str) -> str | None:
    """Return by which generation a server answers; None: by none yet.

    Raises:
        UsageError: this is no URL of a server with a store.
        ServiceUnreachable: nothing answers there.
    """
    import httpx2

    refusal = partial(UsageError, f"--wait {url}: give the URL of a polyrank server that serves this store")
    if not url.startswith(("http://", "https://")):
        raise refusal()
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/readyz", timeout=_ANSWER_SECONDS)
    except (httpx2.InvalidURL, UnicodeError):
        raise refusal() from None
    except httpx2.TimeoutException:
        return None  # it is busy, perhaps with loading
    except httpx2.HTTPError as error:
        raise ServiceUnreachable(f"--wait {url}: {error}") from None
    if answer.status_code == 503:
        return None
    try:
        generation = answer.json()["generation"]
    except (ValueError, LookupError, TypeError):
        generation = None
    if answer.status_code != 200 or not isinstance(generation, str):
        raise refusal()
    return generation
