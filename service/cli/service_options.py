"""Options that name a running service, and the client of the service that they name."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from polyrank.service import API_KEY
from polyrank.service.cli.output import UsageError
from polyrank.service.errors import ServiceUnreachable

if TYPE_CHECKING:
    from polyrank.service.client.clients import Client

DEFAULT_URL = "http://127.0.0.1:8000"


def add_service_options(parser: argparse.ArgumentParser) -> None:
    """Add `--url` and `--api-key`; `service_of` heeds them."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"a running service; default: {DEFAULT_URL}")
    parser.add_argument("--api-key", metavar="KEY", help=f"the service's; better {API_KEY}: other users see arguments")


@contextmanager
def service_of(arguments: argparse.Namespace) -> Iterator["Client"]:
    """Yield a client of the service that the arguments name; it asks once.

    Raises:
        UsageError: the URL is none, or the key cannot be sent; the error does not quote it.
        ServiceUnreachable: the service does not answer, or says that something is wrong.
    """
    key = (arguments.api_key or os.environ.get(API_KEY, "")).strip()
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"the API key (--api-key or {API_KEY}) has characters that no key has")
    url = arguments.url or DEFAULT_URL
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: begin it with http:// or https://")
    from polyrank.service.client.attempts import CallFailed, Refused
    from polyrank.service.client.clients import Client

    try:
        client = Client(url, key or None, max_retries=0)
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from None
    try:
        with client:
            yield client
    except Refused as error:
        hint = f" (the variable {API_KEY})" if error.status == 401 else ""
        raise ServiceUnreachable(f"{url.rstrip('/')}: {error.detail}{hint}") from error
    except CallFailed as error:
        raise ServiceUnreachable(f"{url.rstrip('/')}: {error}") from error
