"""The closed loop over dialogues of people: a model answers, agents write what they said instead, a new model learns.

    python -m benchmarks.loop_demonstration --model CHECKPOINT --dialogues FILE --valid LISTS --output FOLDER
        [--steps 60] [--noise 0.1] [--seed 0] [--limit N]

FILE names the dialogue of each example. One half of its dialogues, drawn by the seed, is the use: a server of the model
ranks each context over the pool, and an agent writes the reply of the dialogue; at a share of `--noise` that of
another dialogue. Of the other half come the pool, which is all of its replies, and the golden set, 150 dialogues of it.
Then `polyrank loop run` exports, trains and judges, and `polyrank evaluate --against` compares both models over LISTS,
which the loop never sees. Prints one JSON object as the last line. FOLDER is new, and keeps everything.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from benchmarks.load.drive import OURS, serving
from benchmarks.timing import machine

from polyrank.model.text.dialogues import Dialogue, new_dialogues, read_dialogues

GOLDEN_DIALOGUES = 150
CALLERS, EVENTS = 8, 100
TRAINING = (
    *("--batch-size", "64", "--learning-rate", "1e-4", "--schedule", "cosine", "--warmup-steps", "6"),
    *("--dropout", "0", "--negatives", "2", "--held-out", "300", "--looks", "2"),
)


class Parts(NamedTuple):
    """Examples by what they are for; no dialogue is in two of them, but the pool's hold the golden ones."""

    use: list[Dialogue]
    golden: list[Dialogue]
    pool: list[str]


def parts(examples: Sequence[Dialogue], rng: random.Random) -> Parts:
    """Draw the halves; the examples of a dialogue stay together and in order."""
    names = sorted({each.dialogue for each in examples})
    rng.shuffle(names)
    half = len(names) // 2
    used, golden = set(names[:half]), set(names[half : half + GOLDEN_DIALOGUES])
    return Parts(
        use=[each for each in examples if each.dialogue in used],
        golden=[each for each in examples if each.dialogue in golden],
        pool=sorted({each.response for each in examples if each.dialogue not in used}),
    )


def polyrank(*arguments: object) -> str:
    """Run a command whose words are seen; returns its standard output."""
    line = [*map(str, OURS), *map(str, arguments)]
    print(f"$ polyrank {' '.join(line[3:])}", file=sys.stderr, flush=True)
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}exit status {done.returncode}")
    return done.stdout


def use(store: Path, examples: Sequence[Dialogue], noise: float, rng: random.Random) -> None:
    """Serve the store, rank each context, and say what the agent wrote."""
    written = [each.response for each in examples]
    for at in range(len(written)):
        if rng.random() < noise:
            written[at] = rng.choice(examples).response
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

        def ranked(example: Dialogue) -> str:
            said = example.conversation
            context, persona = [turn.text for turn in said.turns], list(said.persona)
            body = {"context": context, "persona": persona, "conversation": example.dialogue, "timeout_ms": 60_000}
            return str(post("/rank", body)["ranking_id"])

        rankings = list(callers.map(ranked, examples))
        events = [
            {"ranking_id": ranking, "kind": "written", "text": text, "event_id": str(at)}
            for at, (ranking, text) in enumerate(zip(rankings, written, strict=True))
        ]
        for at in range(0, len(events), EVENTS):
            post("/feedback", {"events": events[at : at + EVENTS]})


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
    found = parts(list(read_dialogues(given.dialogues)), rng)
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
        use(store, asked, given.noise, rng)
    with clock.times("loop"):
        run = json.loads(polyrank("loop", "run", "--config", config, "--json").splitlines()[-1])
    generation = (store / "CURRENT").read_text(encoding="utf-8").strip()
    new = store / "generations" / generation / "model"
    with clock.times("evaluate"):
        command = ("evaluate", "--model", new, "--against", given.model, "--data", given.valid, "--json")
        evaluated = json.loads(polyrank(*command).splitlines()[-1])
    counts = {"use": len(asked), "golden": len(found.golden), "pool": len(found.pool)}
    return {**counts, "seconds": clock.seconds, "run": run, "evaluated": evaluated}


def main() -> None:
    """Print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="that never saw the dialogues")
    parser.add_argument("--dialogues", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--noise", type=float, default=0.1, help="share of replies that are another dialogue's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only the first N examples of the use")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps({"machine": machine(), **demonstrate(given)}))


if __name__ == "__main__":
    main()
