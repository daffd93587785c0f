"""Calls a running service."""

import http.client
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from polyrank.service import API_KEY
from polyrank.service.errors import ServiceUnreachable

_TIMEOUT_SECONDS = 30.0


class Service:
    """A running service at a URL; an empty key is not sent."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self._key = url.rstrip("/"), key

    def call(self, method: str, path: str, body: object = None, expected: str = "") -> dict[str, Any]:
        """Call a route; returns the JSON object that it answers with, which has the field `expected`.

        Raises:
            ServiceUnreachable: it does not answer, or says that something is wrong.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            headers = {} if data is None else {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers, method=method)
            if self._key:
                request.add_unredirected_header("Authorization", f"Bearer {self._key}")  # for this server alone
            with _opener(request.host).open(request, timeout=_TIMEOUT_SECONDS) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            hint = f" (the variable {API_KEY})" if error.code == 401 else ""
            raise ServiceUnreachable(f"{self.url}: {_problem(error)}{hint}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise ServiceUnreachable(f"{self.url} does not answer ({why}); is polyrank serve running?") from error
        if not isinstance(answer, dict) or (expected and expected not in answer):
            raise ServiceUnreachable(f"{self.url} answers, but not as polyrank serve does")
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
        return f"status {error.code}, without a reason as polyrank serve gives it"
