"""Work that `same_speed.py` times in one checkout: started with that checkout's Python, it does one round when told.

    CHECKOUT/.venv/bin/python timed.py scan|build|train CHECKOUT FOLDER

Prints one JSON object a line: `{}` when the work is prepared, then for each line of standard input the seconds of a
round, and of the processor's: `{"scan": [seconds, seconds]}`. Ends with standard input. FOLDER is empty; stores and
checkpoints go there.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from polyrank.service.cli import main as polyrank

Times = dict[str, list[float | None]]  # by name: seconds, and seconds of the processor where they are known

ROWS, DIM, CODES, BEST = 100_000, 384, 64, 10
SCANS = 5  # of a round, each of another context
SCORE_SCALE = 20.0  # as of a shipped checkpoint
NO_LOOKS = "0.0001"  # an epoch: no look at the selection slice between two steps
MANY_STEPS = "1000000"


class Clock:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self, of: int = 1) -> list[float | None]:
        """Seconds, and seconds of this process on the processor, each divided by a number."""
        now = time.perf_counter(), time.process_time()
        return [(end - began) / of for end, began in zip(now, self._began, strict=True)]


class Orders:
    """Answers to whoever started this process, apart from what the product prints."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def answer(self, seconds: Times) -> None:
        """Say that all is ready (nothing), or what a round took."""
        self._out.write(json.dumps(seconds) + "\n")
        self._out.flush()

    def wait(self) -> None:
        """Return when a round is to begin; the process ends here when there is none."""
        if not sys.stdin.readline():
            os._exit(0)

    def serve(self, round_: Callable[[], Times]) -> None:
        """Do rounds until there is none left, after one that warms up."""
        round_()
        self.answer({})
        while True:
            self.wait()
            self.answer(round_())


def scan(orders: Orders, _checkout: Path, _folder: Path) -> None:
    """Random candidates and codes of length 1; another context for each scan of a round."""
    import numpy as np

    from polyrank.model.search.scan import Query, prepare

    rng = np.random.default_rng(0)

    def unit(*shape: int) -> Any:
        drawn = rng.standard_normal(shape, dtype=np.float32)
        return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)

    prepared = prepare(unit(ROWS, DIM).astype(np.float16))
    contexts = SCORE_SCALE * unit(SCANS, CODES, DIM)

    def round_() -> Times:
        clock = Clock()
        for codes in contexts:
            (best,) = prepared.top_k([Query(codes, BEST)])
            assert len(best.rows) == BEST
        return {"scan": clock.read(SCANS)}

    orders.serve(round_)


def build(orders: Orders, checkout: Path, folder: Path) -> None:
    """The sample pool, by `polyrank build`: seconds by its own account, and of the call, which loads the model too."""
    counter = count()
    flags = ["--model", str(checkout / "checkpoints" / "chat-poly"), "--backend", "torch", "--json"]
    pool = str(checkout / "examples" / "support" / "pool.jsonl")

    def round_() -> Times:
        printed, store = io.StringIO(), folder / f"store-{next(counter)}"
        clock = Clock()
        with contextlib.redirect_stdout(printed):
            assert polyrank(["build", "--pool", pool, "--store", str(store), *flags]) == 0
        whole = clock.read()
        built = json.loads(printed.getvalue().splitlines()[-1])
        return {"build": [built["seconds"], None], "build with loading": whole}

    orders.serve(round_)


def train(orders: Orders, checkout: Path, folder: Path) -> None:
    """Steps of one run of `polyrank train`, which is held after each optimizer step until the next round."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock: Clock | None = None

    def after_step(*_: object) -> None:
        nonlocal clock
        orders.answer({} if clock is None else {"train": clock.read()})
        orders.wait()
        clock = Clock()

    register_optimizer_step_post_hook(after_step)
    data = str(checkout / "examples" / "support" / "conversations.jsonl")
    flags = ["--base", "sentence-transformers/all-MiniLM-L6-v2", "--output", str(folder / "trained"), "--train", data]
    recipe = ["--batch-size", "32", "--steps", MANY_STEPS, "--looks", NO_LOOKS]
    sys.exit(polyrank(["train", "--architecture", "poly", *flags, *recipe]) or "the run ended by itself")


if __name__ == "__main__":
    work = {"scan": scan, "build": build, "train": train}[sys.argv[1]]
    work(Orders(), Path(sys.argv[2]), Path(sys.argv[3]))
