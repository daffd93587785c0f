"""One side of a comparison, in a process of its own: reads JSON lines, times calls, writes JSON lines.

Uses the standard library only, because it runs in the environment of every peer.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# Output of libraries goes to standard error, away from the answers.
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def answer(calls: Mapping[str, Callable[[Any], Any]], about: dict[str, Any]) -> None:
    """Answer requests until standard input ends.

    A request is `{"call": name, "inputs": [...]}`, the answer `{"seconds": [...]}`: how long the call took on each
    input. With `"show": true` the answer also has the results, as lists.

    Args:
        calls: functions of one input, by name.
        about: versions and the like; sent first.
    """
    _tell({"about": about})
    for line in sys.stdin:
        request = json.loads(line)
        call, results, seconds = calls[request["call"]], [], []
        for each in request["inputs"]:
            began = time.perf_counter()
            result = call(each)
            seconds.append(time.perf_counter() - began)
            if request.get("show"):
                results.append(result.tolist())
        _tell({"seconds": seconds, "results": results})


def _tell(told: dict[str, Any]) -> None:
    _answers.write(json.dumps(told) + "\n")
