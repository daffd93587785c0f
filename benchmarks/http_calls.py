"""JSON to a served store and back, for the benchmarks beside this file."""

import json
import urllib.request
from typing import Any


def call(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    """Send a JSON body; returns the answer's."""
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
