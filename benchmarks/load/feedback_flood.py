"""Whether one caller's events drive out what others have said, and what a log of them costs to read.

    python -m benchmarks.load.feedback_flood [--seconds 20] [--mb 32] [--rankings 1] [--equal]

Asks for 200 rankings and says of each which reply was chosen. Then one caller sends 100 `written` events a call for so
long, each of 4,000 random letters (`--equal`: always the same), about one ranking or several in turn. Prints as JSON
what the attack was answered, how many of the 200 are left with their event, and the seconds and memory of
`polyrank feedback status`.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
from benchmarks.load.drive import OURS, REPOSITORY, add_options, serving, store_of
from benchmarks.timing import machine

from polyrank.service.feedback.reading import uses

HONEST, EVENTS, LETTERS = 200, 100, 4_000
_ONLY_LETTERS = bytes.maketrans(b"0123456789+/", b"abcdefghijkl")
_MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""
SETTLE_SECONDS = 70.0  # servers look for files that are too many once a minute


def asked(client: httpx2.Client, number: int) -> dict[str, Any]:
    """Ask for a ranking; returns the answer."""
    answer = client.post("/rank", json={"context": f"hello {number}", "top_k": 3, "conversation": f"chat {number}"})
    return dict(answer.raise_for_status().json())


def some_text(draw: random.Random) -> str:
    """Return random letters, which no compression makes smaller by much."""
    return b64encode(draw.randbytes(LETTERS * 3 // 4)).translate(_ONLY_LETTERS).decode()


def attack(client: httpx2.Client, options: argparse.Namespace) -> Counter[int]:
    """Send events until the time is over; returns the answers' statuses."""
    draw, answers = random.Random(options.seed), Counter[int]()
    targets = [asked(client, -number)["ranking_id"] for number in range(options.rankings)]
    until, call = time.monotonic() + options.seconds, 0
    while time.monotonic() < until:
        text = some_text(draw)
        events = [
            {
                "ranking_id": targets[call % len(targets)],
                "kind": "written",
                "event_id": f"{call} {number}",
                "text": text if options.equal else some_text(draw),
            }
            for number in range(EVENTS)
        ]
        answers[client.post("/feedback", json={"events": events}).status_code] += 1
        call += 1
    return answers


def status(store: Path) -> dict[str, Any]:
    """Run `polyrank feedback status`; returns its seconds, its memory and what it counts."""
    began = time.monotonic()
    command = [*map(str, OURS), "feedback", "status", "--store", str(store), "--json"]
    # A process begins with the memory of the one that it was made from, so a small one is put between.
    done = subprocess.run([sys.executable, "-c", _MEASURED, *command], check=True, capture_output=True, cwd=REPOSITORY)
    *said, memory = done.stdout.splitlines()
    return {"seconds": round(time.monotonic() - began, 2), "mib": int(memory) >> 10, "says": json.loads(b"".join(said))}


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.set_defaults(seconds=20.0)
    parser.add_argument("--mb", type=int, default=32, help="the setting feedback_mb; default: 32")
    parser.add_argument("--rankings", type=int, default=1, help="that the events are about; default: 1")
    parser.add_argument("--equal", action="store_true", help="send the same text in all events of a call")
    options = parser.parse_args()
    with store_of(options) as store:
        with (
            serving(store, {"feedback": "texts", "feedback_mb": options.mb}) as server,
            httpx2.Client(base_url=server.url, timeout=60) as client,
        ):
            honest = set[str]()
            for number in range(HONEST):
                answer = asked(client, number)
                honest.add(answer["ranking_id"])
                chosen = {"ranking_id": answer["ranking_id"], "kind": "chosen", "id": answer["results"][0]["id"]}
                client.post("/feedback", json={"events": [{**chosen, "event_id": "a"}]}).raise_for_status()
            answers = attack(client, options)
            time.sleep(SETTLE_SECONDS)
        kept = sum(use.ranking.id in honest and bool(use.events) for use in uses(store))
        size = sum(path.stat().st_size for path in Path(store, "feedback").iterdir())
        read = status(store)
    told = {"machine": machine(), "answers": answers, "honest": HONEST, "kept": kept, "bytes": size, "status": read}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
