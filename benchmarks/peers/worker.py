"""One side of a comparison, in a process of its own: JSON lines in, timed calls, JSON lines out.

Standard library only: it runs in every peer's environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# What a library prints must not come between the answers.
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def answer(calls: Mapping[str, Callable[[Any], Any]], about: dict[str, Any]) -> None:
    """Answer until standard input ends.

    A request is `{"call": name, "inputs": [...]}`, the answer `{"seconds": [...]}`: how long the call took on each
    input. With `"show": true` what the call returned is added, as lists, and time is of no interest.

    Args:
        calls: what is timed, on one input, by name.
        about: versions and the like, told first.
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
