"""The closed loop over dialogues of people: a model answers, agents write what they said instead, a new model learns.

    python -m benchmarks.loop_demonstration --model CHECKPOINT --dialogues FILE --valid LISTS --output FOLDER
        [--suggestions FILE] [--takes picked] [--steps 60] [--seed 0] [--limit N]

FILE names the dialogue of each example. One half of its dialogues, drawn by the seed, is the use: a server of the model
ranks each context over the pool, and an agent writes the reply of the dialogue; at a tenth of the contexts that of
another dialogue. Of the other half come the pool, which is all of its replies, and the golden set, 150 dialogues of it.
Then `polyrank loop run` exports, trains and judges, and `polyrank evaluate --against` compares both models over LISTS,
which the loop never sees. Prints one JSON object as the last line. FOLDER is new, and keeps everything.

`--suggestions` is a file of what agents of these dialogues were shown, picked and sent (STAR). The use is then its rows
of the first half, in the order of their times, and the pool holds all that was shown and the golden replies. Where the
server ranks what the agent took among its first ten, the event is `chosen`, else `written` with what was sent.
`--takes first` takes the suggestion at the top in the place of the agent's pick: the most that position can teach.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from benchmarks.load.drive import OURS, serving
from benchmarks.timing import machine

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, DialoguesInvalid, new_dialogues, read_dialogues
from polyrank.model.text.jsonlines import read_objects

GOLDEN_DIALOGUES = 150
NOISE = 0.1  # share of replies that are another dialogue's
CALLERS, EVENTS = 8, 100
TRAINING = (
    *("--batch-size", "64", "--learning-rate", "1e-4", "--schedule", "cosine", "--warmup-steps", "6"),
    *("--dropout", "0", "--negatives", "2", "--held-out", "300", "--looks", "2"),
)


class Asked(NamedTuple):
    """A context, what the agent takes of the pool, if anything, and what it sends otherwise."""

    conversation: Conversation
    dialogue: str
    taken: str | None
    sent: str


class Parts(NamedTuple):
    """Examples by what they are for; no dialogue is in two of them, but the pool's hold the golden ones."""

    use: list[Asked]
    golden: list[Dialogue]
    pool: list[str]


def parts(examples: Sequence[Dialogue], noise: float, rng: random.Random) -> Parts:
    """Draw the halves; the examples of a dialogue stay together and in order."""
    names = sorted({each.dialogue for each in examples})
    rng.shuffle(names)
    half = len(names) // 2
    used, golden = set(names[:half]), set(names[half : half + GOLDEN_DIALOGUES])
    use = [each for each in examples if each.dialogue in used]
    sent = [rng.choice(use).response if rng.random() < noise else each.response for each in use]
    return Parts(
        use=[Asked(each.conversation, each.dialogue, None, text) for each, text in zip(use, sent, strict=True)],
        golden=[each for each in examples if each.dialogue in golden],
        pool=sorted({each.response for each in examples if each.dialogue not in used}),
    )


def with_suggestions(found: Parts, path: Path, takes: str) -> Parts:
    """Let agents of the same dialogues choose from what they were shown."""
    used = {each.dialogue for each in found.use}
    rows = [row for _, row in read_objects(path, DialoguesInvalid) if isinstance(row, dict)]
    shown = {each["text"] for row in rows for each in row["shown"]}
    use = []
    for row in sorted((row for row in rows if row["dialogue"] in used), key=lambda row: row["time"]):
        text_of = {each["label"]: each["text"] for each in row["shown"]}
        first = row["shown"][0]["label"] if row["shown"] else None
        taken = text_of.get(row.get("picked") if takes == "picked" else first)
        use.append(Asked(Conversation.of(row["context"]), row["dialogue"], taken, row["sent"]))
    return found._replace(use=use, pool=sorted(shown.union(each.response for each in found.golden)))


def polyrank(*arguments: object) -> str:
    """Run a command whose words are seen; returns its standard output."""
    line = [*map(str, OURS), *map(str, arguments)]
    print(f"$ polyrank {' '.join(line[3:])}", file=sys.stderr, flush=True)
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}exit status {done.returncode}")
    return done.stdout


def use(store: Path, examples: Sequence[Asked]) -> Counter[str]:
    """Serve the store, rank each context, and say what the agent took or wrote; returns how many events of a kind."""
    with (
        serving(store, {"feedback": "texts", "max_timeout_ms": 60_000}) as server,
        httpx2.Client(base_url=server.url, timeout=90) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):

        def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = client.post(path, json=body)
            if answer.status_code != 200:
                sys.exit(f"POST {path}: {answer.text}")
            return dict(answer.json())

        def event(at: int) -> dict[str, str]:
            asked = examples[at]
            said = asked.conversation
            context, persona = [turn.text for turn in said.turns], list(said.persona)
            body = {"context": context, "persona": persona, "conversation": asked.dialogue, "timeout_ms": 60_000}
            ranking = post("/rank", body)
            named = {"ranking_id": str(ranking["ranking_id"]), "event_id": str(at)}
            for each in ranking["results"]:
                if each["text"] == asked.taken:
                    return {**named, "kind": "chosen", "id": each["id"]}
            return {**named, "kind": "written", "text": asked.sent}

        events = list(callers.map(event, range(len(examples))))
        for at in range(0, len(events), EVENTS):
            post("/feedback", {"events": events[at : at + EVENTS]})
    return Counter(each["kind"] for each in events)


class Clock:
    """Seconds of each part."""

    def __init__(self) -> None:
        self.seconds = dict[str, int]()

    @contextmanager
    def times(self, part: str) -> Iterator[None]:
        """Time the block."""
        began = time.monotonic()
        yield
        self.seconds[part] = round(time.monotonic() - began)


def demonstrate(given: argparse.Namespace) -> dict[str, Any]:
    """Go through all of it; returns the figures."""
    folder, clock, rng = given.output, Clock(), random.Random(given.seed)
    store, golden, pool, config = (folder / name for name in ("store", "golden.jsonl", "pool.jsonl", "loop.toml"))
    found = parts(list(read_dialogues(given.dialogues)), NOISE, rng)
    if given.suggestions:
        found = with_suggestions(found, given.suggestions, given.takes)
    asked = found.use[: given.limit]
    folder.mkdir(parents=True)
    with new_dialogues(golden) as add:
        for each in found.golden:
            add(each)
    pool.write_text("".join(json.dumps({"id": f"r{n}", "text": text}) + "\n" for n, text in enumerate(found.pool)))
    training = [*TRAINING, "--steps", str(given.steps), "--seed", str(given.seed)]
    config.write_text(
        f"store = {json.dumps(str(store))}\ngolden = [{json.dumps(str(golden))}]\n"
        f'train = {json.dumps(training)}\ncanary = "off"\n'
    )
    with clock.times("build"):
        polyrank("build", "--model", given.model, "--pool", pool, "--store", store)
    with clock.times("use"):
        events = use(store, asked)
    with clock.times("loop"):
        run = json.loads(polyrank("loop", "run", "--config", config, "--json").splitlines()[-1])
    generation = (store / "CURRENT").read_text(encoding="utf-8").strip()
    new = store / "generations" / generation / "model"
    with clock.times("evaluate"):
        command = ("evaluate", "--model", new, "--against", given.model, "--data", given.valid, "--json")
        evaluated = json.loads(polyrank(*command).splitlines()[-1])
    counts = {"use": len(asked), **events, "golden": len(found.golden), "pool": len(found.pool)}
    return {**counts, "seconds": clock.seconds, "run": run, "evaluated": evaluated}


def main() -> None:
    """Print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="that never saw the dialogues")
    parser.add_argument("--dialogues", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--suggestions", type=Path, help="what agents of these dialogues were shown, picked and sent")
    parser.add_argument("--takes", choices=["picked", "first"], default="picked")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only the first N examples of the use")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps({"machine": machine(), **demonstrate(given)}))


if __name__ == "__main__":
    main()
