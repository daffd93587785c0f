"""Asks a running service for a ranking."""

import http.client
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from polyrank.service.errors import ServiceUnreachable

_TIMEOUT_SECONDS = 30.0


def from_service(url: str, turns: list[str], top_k: int, rerank: bool, key: str) -> dict[str, Any]:
    """Rank by the service at a URL; an empty key is not sent.

    Raises:
        ServiceUnreachable: it does not answer, or says that something is wrong.
    """
    body = json.dumps({"context": turns, "top_k": top_k, "rerank": rerank}).encode()
    try:
        request = urllib.request.Request(
            f"{url.rstrip('/')}/rank", data=body, headers={"Content-Type": "application/json"}
        )
        if key:
            request.add_unredirected_header("Authorization", f"Bearer {key}")  # for this server alone
        with _opener(request.host).open(request, timeout=_TIMEOUT_SECONDS) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise ServiceUnreachable(f"{url}: {_problem(error)}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise ServiceUnreachable(f"{url} does not answer ({why}); is polyrank serve running?") from error
    if not isinstance(answer, dict) or "results" not in answer:
        raise ServiceUnreachable(f"{url} answers, but not as polyrank serve does")
    return answer


def _opener(host: str) -> urllib.request.OpenerDirector:
    """Use the environment's proxies, except for this machine: a proxy would connect to its own."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    try:
        is_here = ipaddress.ip_address(name).is_loopback
    except ValueError:
        is_here = name == "localhost"
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_here else []))


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return f"status {error.code}"
