"""How long `/livez` takes while callers send the worst requests of each kind.

    python -m benchmarks.load.beats [--seconds 60] [--callers 16] [--only WORDS]

Prints a line of JSON for each request of `worst.py`: the answers that the callers got, and of `/livez`, which one more
caller asks every 20 ms, the median, the 99th percentile and the longest time. The callers are a process of their own.
Unless told otherwise (`--polyrank`), the server is that of this checkout.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.synchronize import Event
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load.drive import OURS, add_options, cores, mix_of, serving, store_of, warm
from benchmarks.load.figures import percentile_ms
from benchmarks.load.worst import Call, worst

PAUSE_SECONDS = 0.02
PATIENCE_SECONDS = 60.0


def send(port: int, call: Call, callers: int, over: Event, told: "multiprocessing.Queue[Any]") -> None:
    """Send a request from so many callers, each again after its answer, until `over`; puts a count of statuses."""
    if (other := cores()[1]) is not None:
        os.sched_setaffinity(0, {other})
    statuses: Counter[str] = Counter()

    def one() -> None:
        while not over.is_set():
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
                    headers = {"Content-Type": "application/json", **call.headers}
                    connection.request(call.method, call.path, call.body, headers)
                    answer = connection.getresponse()
                    answer.read()
                    statuses[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                statuses[type(error).__name__] += 1

    threads = [threading.Thread(target=one) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put(dict(statuses))


def asked(port: int, seconds: float) -> list[float]:
    """Ask `/livez` again and again for so long; returns how long each answer took."""
    took, until = [], time.monotonic() + seconds
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        while (began := time.monotonic()) < until:
            connection.request("GET", "/livez")
            connection.getresponse().read()
            took.append(time.monotonic() - began)
            time.sleep(PAUSE_SECONDS)
    return took


def beside(port: int, call: Call, callers: int, seconds: float) -> dict[str, Any]:
    """Return the figures of `/livez` while callers send a request."""
    over = multiprocessing.Event()
    told: multiprocessing.Queue[Any] = multiprocessing.Queue()
    sending = multiprocessing.Process(target=send, args=(port, call, callers, over, told))
    sending.start()
    try:
        time.sleep(0.5)
        took = asked(port, seconds)
    finally:
        over.set()
    answers = told.get()
    sending.join()
    return {
        "what": call.what, "path": call.path[:40], "answers": answers, "asked": len(took),
        **{name: percentile_ms(took, share) for name, share in (("p50_ms", 50), ("p99_ms", 99), ("longest_ms", 100))},
    }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; see the module's first lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.set_defaults(seconds=60.0)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=[], help="requests whose path or kind holds one of these")
    parser.add_argument("--polyrank", nargs="*", default=OURS, help="the command; default: this checkout's")
    options = parser.parse_args(argv)
    with store_of(options) as store, serving(store, polyrank=options.polyrank) as server:
        warm(server, mix_of(options))
        port = urlsplit(server.url).port or 80
        for call in worst():
            if not options.only or any(words in f"{call.path} {call.what}" for words in options.only):
                print(json.dumps(beside(port, call, options.callers, options.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
