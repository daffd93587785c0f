"""Connects a process to a Ray cluster that asks for a token; the only module that imports Ray.

Ray reads its settings when it is imported, so they are set before. A cluster is never started here: `ray start` does
that (docs/scale.md). Ray Client (`ray://`) is refused, because it runs the caller's work in a proxy on the head.
"""

import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from ipaddress import ip_address
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from polyrank.index_builder.errors import ClusterUnavailable
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input

AUTO = "auto"
_LOOPBACK = "127.0.0.1"
_ANSWER_WITHIN_SECONDS = 5.0
_AUTH_MODE, _TOKEN = "RAY_AUTH_MODE", "token"
# Where the user has set them, the user's values stay.
_SETTINGS = {
    "RAY_max_direct_call_object_size": str(4 << 20),  # bytes; larger arguments go through shared memory, 5 ms later
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",  # Ray ends this process where the head is gone for longer
}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Address(NamedTuple):
    """Where the head of a cluster listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


def why_unusable(address: str) -> str | None:
    """Return what is wrong with `--cluster ADDRESS` before anything is loaded; None: nothing."""
    if importlib.util.find_spec("ray") is None:
        return "--cluster needs the package ray: pip install 'polyrank[scale]'"
    if "://" in address:
        return f"--cluster {address}: Ray Client is not supported; give HOST:PORT of the cluster's head, or auto"
    if address != AUTO and _parsed(address) is None:
        return f"--cluster {address} is neither HOST:PORT of a cluster's head nor auto"
    return None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect this process to a running cluster, and yield the module `ray`; for the main thread.

    Ray prints what happens in the cluster. So all that is printed meanwhile goes to standard error: standard output is
    for results.

    Args:
        address: HOST:PORT of its head, or "auto" for the cluster of RAY_ADDRESS or else of this machine.

    Raises:
        InvalidInput: the address is none, or the extra is missing (`why_unusable`).
        ClusterUnavailable: nothing answers there, this machine has no node of the cluster, it has another version of
            Ray or Python, the token is missing or wrong, or RAY_AUTH_MODE forbids tokens.
    """
    if why := why_unusable(address):
        raise InvalidInput(why)
    head = _head(address)
    _set_environment(head)
    try:
        socket.create_connection(head, timeout=_ANSWER_WITHIN_SECONDS).close()
    except OSError as error:
        raise ClusterUnavailable(str(head), f"nothing answers ({error.strerror or error})") from error
    import ray

    handlers = [(number, signal.getsignal(number)) for number in _SIGNALS]
    with redirect_stdout(sys.stderr):
        try:
            _join(ray, head)
            for number, handler in handlers:  # Ray has taken SIGTERM
                signal.signal(number, handler)
            yield ray
        finally:
            ray.shutdown()


def require_token() -> None:
    """For a process that Ray has started: raise ClusterUnavailable where its node was started without tokens.

    Such a node runs the code of anybody who reaches it.
    """
    if os.environ.get(_AUTH_MODE, "").lower() != _TOKEN:
        raise ClusterUnavailable(
            socket.gethostname(), f"this node asks for no token; start every node with {_AUTH_MODE}={_TOKEN}"
        )


def _join(ray: Any, head: Address) -> None:
    logging.getLogger("ray").setLevel(logging.WARNING)
    # Left alone Ray would name the loopback by an address that other machines reach.
    here = {"_node_ip_address": _LOOPBACK} if head.is_loopback else {}
    try:
        ray.init(address=str(head), log_to_driver=False, configure_logging=False, **here)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise ClusterUnavailable(str(head), _why(error)) from error


def _why(error: BaseException) -> str:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if "AuthenticationError" in f"{type(cause).__name__}: {cause}":  # Ray puts a whole traceback into the text
        return "the token is missing or wrong; give the cluster's by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def _set_environment(head: Address) -> None:
    """Set what Ray reads when it is imported."""
    mode = os.environ.get(_AUTH_MODE, _TOKEN)
    if mode.lower() != _TOKEN:
        raise ClusterUnavailable(str(head), f"{_AUTH_MODE}={mode} allows anybody to run code there; set it to {_TOKEN}")
    os.environ[_AUTH_MODE] = _TOKEN
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if head.is_loopback:  # without this Ray listens on all interfaces, and calls the loopback by another address
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def _head(address: str) -> Address:
    """Return where the head listens; for "auto" as Ray finds it, without importing it."""
    text = os.environ.get("RAY_ADDRESS") or _noted_here() if address == AUTO else address
    if head := _parsed(text):
        local_head = _parsed(_noted_here())
        # A head that listens on every interface answers on the loopback, too, but its nodes have other addresses.
        return local_head if local_head and head.is_loopback and local_head.port == head.port else head
    if text:
        raise ClusterUnavailable(text, "RAY_ADDRESS must be HOST:PORT of its head")
    raise ClusterUnavailable(AUTO, "this machine has no node of a cluster; start one, or give HOST:PORT")


def _noted_here() -> str:
    """Return what `ray start` has noted on this machine; empty: nothing."""
    directory = Path(os.environ.get("RAY_TMPDIR") or gettempdir())
    try:
        return read_input(directory / "ray" / "ray_current_cluster").decode().strip()
    except OSError:
        return ""


def _parsed(address: str) -> Address | None:
    if "://" in address or "/" in address:
        return None
    try:
        parts = urlsplit(f"//{address}")
        return Address(parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None
