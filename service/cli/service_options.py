"""Options that name a running service, and the service that they name."""

import argparse
import os
from typing import TYPE_CHECKING

from polyrank.service import API_KEY
from polyrank.service.cli.output import UsageError

if TYPE_CHECKING:
    from polyrank.service.cli.remote import Service

DEFAULT_URL = "http://127.0.0.1:8000"


def add_service_options(parser: argparse.ArgumentParser) -> None:
    """Add `--url` and `--api-key`; `service_of` heeds them."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"a running service; default: {DEFAULT_URL}")
    parser.add_argument("--api-key", metavar="KEY", help=f"the service's; better {API_KEY}: other users see arguments")


def service_of(arguments: argparse.Namespace) -> "Service":
    """Return the service that the arguments name.

    Raises:
        UsageError: the URL is none, or the key cannot be sent; the error does not quote it.
    """
    key = (arguments.api_key or os.environ.get(API_KEY, "")).strip()
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"the API key (--api-key or {API_KEY}) has characters that no key has")
    from polyrank.service.cli.remote import Service

    url = arguments.url or DEFAULT_URL
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: begin it with http:// or https://")
    return Service(url, key)
