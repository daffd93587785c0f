"""Call a served store with JSON; for the benchmarks in this folder."""

import json
import urllib.request
from typing import Any


def call(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    """Send a JSON body; returns the body of the answer."""
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
