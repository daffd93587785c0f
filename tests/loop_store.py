"""A store whose feedback teaches its model something, in seconds."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from command_line import write_rows
from feedback_logs import write_log
from tiny import write_checkpoint

from polyrank.model.text.assembly import Conversation
from polyrank.service.cli import main
from polyrank.service.feedback.records import Event, Ranking, Shown, Use

TOPICS = 8
# A pool of 40 texts is small, and so is what is trained here.
TRAIN = ["--steps", "30", "--batch-size", "8", "--learning-rate", "1e-2", "--warmup-steps", "3", "--dropout", "0"]
TRAIN += ["--schedule", "constant", "--precision", "no", "--no-evidence"]
TRAIN += ["--max-context-tokens", "40", "--max-candidate-tokens", "16"]
MINE = ["--depth", "10", "--skip", "2"]


def contexts(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Contexts of two words, and the reply that the first one asks for."""
    draw = random.Random(seed)
    for _ in range(count):
        topic, noise = draw.randrange(TOPICS), " ".join(f"w{draw.randrange(16, 40)}" for _ in range(3))
        yield f"w{topic} w{topic} {noise}", f"w{topic + TOPICS}"


def write_golden(path: Path, count: int = 300, **more: Any) -> Path:
    """Examples that nobody has sent; the lists are all replies."""
    replies = [f"w{topic + TOPICS}" for topic in range(TOPICS)]
    rows = [
        {"context": [said], "response": reply, "candidates": replies, "dialogue": f"g{number}", **more}
        for number, (said, reply) in enumerate(contexts(count, seed=2))
    ]
    return write_rows(path, rows)


def written(count: int, seed: int = 1, liked: bool = False) -> list[Use]:
    """Rankings to which somebody has written the reply that was asked for.

    `liked`: somebody has also liked what half of them showed.
    """
    return [
        _written(f"{seed}{number:06d}", 1e9 + number, said, reply, liked and number % 4 < 2)
        for number, (said, reply) in enumerate(contexts(count, seed))
    ]


def _written(name: str, at: float, said: str, reply: str, liked: bool) -> Use:
    ranking = Ranking(
        id=f"r{name}", at=at, generation="g", revision=0, fingerprint="f", shown=(Shown("c0", 1.0),),
        said=Conversation.of(said), conversation=f"conversation {name}",
    )  # fmt: skip
    wrote = Event(id=f"e{name}", at=at, ranking=ranking.id, kind="written", text=reply)
    likes = Event(id=f"l{name}", at=at, ranking=ranking.id, kind="up", reply="c0")
    return Use(ranking, (wrote, likes) if liked else (wrote,))


def write_store(folder: Path, uses: Iterable[Use]) -> Path:
    """A store with an untrained Bi-encoder over the words, and a log."""
    model = write_checkpoint(folder, "untrained", seed=0, architecture="bi")
    pool = write_rows(folder / "pool.jsonl", [{"id": f"c{word}", "text": f"w{word}"} for word in range(40)])
    status = main(["build", "--model", str(model), "--pool", str(pool), "--store", str(folder / "store"), "--json"])
    assert status == 0
    return write_log(folder / "store", uses)


def write_config(folder: Path, **settings: Any) -> Path:
    """The loop's settings; those that are given replace them."""
    values = {
        "store": str(folder / "store"), "golden": [str(folder / "golden.jsonl")], "train": TRAIN,
        "mine": MINE, "least_examples": 50, "canary": "off", "look_seconds": 0.1, **settings,
    }  # fmt: skip
    path = folder / "loop.toml"
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in values.items()))
    return path


def _toml(value: Any) -> str:
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else repr(value).replace("'", '"')
