"""How often the one reply with a certain identifier comes first, with words and without.

    python -m benchmarks.words.identifiers --model CHECKPOINT [--pool POOL] [--size 30000] [--queries 200] [--seed 0]
        [--any-text]

The pool has `--size` replies. A tenth of them have an identifier each: an order number, an error code, a version and
so on, put into one of a few sentences, so that many replies differ by their identifiers alone. The others are the first
ones of POOL (a file as `polyrank build` takes it); without POOL each is put together of two replies of the bundled
sample. Some of those with an identifier are asked for by conversations that name it, now and then in small letters or
without its "#". Two servers with equal vectors answer, one of which counts words. Prints a table of how often the reply
is first and among the first ten, and what is first instead. With `--any-text` an identifier stands in front of a text
that does not fit it, and conversations say little else.
"""

import argparse
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.http_calls import call
from benchmarks.load.mix import SAMPLE
from benchmarks.serving import served
from benchmarks.words.stores import two_stores

from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.errors import InvalidInput, RankingError

GOAL = 0.95  # of the replies come first
NAMED = 0.1  # of the pool have an identifier
TOP, DEPTH = 10, 1000  # a miss within DEPTH is printed with its scores


class Kind(NamedTuple):
    """A kind of identifier, the sentences of replies that have one, and the conversations that ask for one."""

    draw: Callable[[Random], str]
    replies: Sequence[str]
    queries: Sequence[Sequence[str]]


class Asked(NamedTuple):
    """A conversation and the reply that should come first."""

    kind: str
    turns: list[str]
    reply: str


class Found(NamedTuple):
    """The rank of the right reply, 0 where it was not retrieved; its scores, and the first reply and its scores."""

    rank: int
    scores: dict[str, float] | None
    first: str
    best: dict[str, float]


def _number(draw: Random, digits: int) -> str:
    return "".join(draw.choice(string.digits) for _ in range(digits))


def _letters(draw: Random, count: int) -> str:
    return "".join(draw.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(count))


KINDS: Mapping[str, Kind] = {
    "order": Kind(
        lambda draw: f"#{_number(draw, 4)}-{_number(draw, 2)}",
        (
            "Order {} left our warehouse this morning and should be with you on Friday.",
            "I have cancelled order {}; the money will be back on your card within five days.",
            "Your order {} is waiting for one item, so we will send it in two parcels.",
            "We have changed the address of order {} as you asked.",
        ),
        (
            ("Hi, what about my order {}?",),
            ("I ordered something last week and heard nothing.", "What is the number of the order?", "It's {}."),
            ("Can you look up {} for me please",),
        ),
    ),
    "error": Kind(
        lambda draw: f"ERR-{_number(draw, 5)}",
        (
            "{} means that the licence has expired; enter the new key under Settings.",
            "If you see {}, close the program, delete its cache and start it again.",
            "{} comes from an old driver. Please install the current one.",
            "We know about {} and will mend it in the next release.",
        ),
        (
            ("the app keeps showing {} and then closes",),
            ("I cannot log in any more.", "Is there a message?", "yes, it says {}"),
            ("What does error {} mean?",),
        ),
    ),
    "status": Kind(
        lambda draw: f"0x8{draw.randrange(16**7):07X}",
        (
            "The code {} says that a file is in use; restart the computer and try the update again.",
            "For {} run the troubleshooter as administrator.",
            "{} usually goes away once there is enough free space on the disk.",
        ),
        (
            ("windows update fails with {}",),
            ("My backup stopped half way.", "Which code do you get?", "{}, any idea?"),
        ),
    ),
    "version": Kind(
        lambda draw: f"v{draw.randrange(1, 10)}.{draw.randrange(41)}.{draw.randrange(21)}",
        (
            "{} fixes the crash on start; please update.",
            "That setting was removed in {} because nobody used it.",
            "You need at least {} for this plugin.",
            "The notes for {} are on our download page.",
        ),
        (
            ("what changed in {}?",),
            ("It crashes since the update.", "Which version do you have now?", "{} I think"),
            ("Is {} safe to install (on a Mac)?",),
        ),
    ),
    "part": Kind(
        lambda draw: f"{_letters(draw, 2)}-{_number(draw, 4)}-{_letters(draw, 1)}",
        (
            "The spare part {} is in stock and costs 14 euros.",
            "{} fits the older model only; the newer one has another hinge.",
            "We no longer make {}, but a repair shop may still have one.",
        ),
        (
            ("do you have part {} in stock?",),
            ("The lid of my machine is broken.", "What does the label say?", "It says {}, no name."),
        ),
    ),
    "parcel": Kind(
        lambda draw: f"1Z{_number(draw, 3)}{_letters(draw, 2)}{_number(draw, 10)}",
        (
            "Parcel {} is at the depot and will be delivered tomorrow before noon.",
            "The carrier could not deliver {} because nobody was at home.",
            "{} was handed to your neighbour on Monday.",
        ),
        (
            ("where is my parcel? the tracking number is {}",),
            ("Nothing has arrived yet.", "Do you have the tracking number?", "{}"),
        ),
    ),
    "invoice": Kind(
        lambda draw: f"INV/20{_number(draw, 2)}/{_number(draw, 5)}",
        (
            "Invoice {} was paid on the third of May; there is nothing left to do.",
            "I have sent a copy of {} to your address.",
            "There was a mistake in {}: the discount was missing. You will get a corrected one.",
        ),
        (
            ("Could you send me {} again?",),
            ("I have a question about a bill.", "Sure, which one?", "{}, why is it so high?"),
        ),
    ),
}


SHORT_QUERIES = (
    ("{}",),
    ("It's {}.",),
    ("what about {}?",),
    ("I ordered something last week and heard nothing.", "What is the number?", "the number is {}"),
    ("hello", "Hi, how can I help you?", "any news on {} yet?"),
    ("can you look up {} for me please",),
)


def named_replies(count: int, draw: Random, texts: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Draw replies with an identifier that no other has: kind, identifier and reply.

    texts: one of them follows the identifier; none: a sentence of its kind holds it.
    """
    taken: set[str] = set()
    found = []
    for at in range(count):
        name = list(KINDS)[at % len(KINDS)]
        kind = KINDS[name]
        while (identifier := kind.draw(draw)) in taken:
            pass
        taken.add(identifier)
        sentences = [f"{{}} {_escaped(draw.choice(texts))}"] if texts else kind.replies
        found.append((name, identifier, draw.choice(sentences).format(identifier)))
    return found


def asked_for(
    named: Sequence[tuple[str, str, str]], count: int, draw: Random, queries: Sequence[Sequence[str]] = ()
) -> list[Asked]:
    """Draw so many of the replies, and a conversation that asks for each: one of `queries`, or of its kind."""
    return [
        Asked(
            kind, [turn.format(_typed(identifier, draw)) for turn in draw.choice(queries or KINDS[kind].queries)], reply
        )
        for kind, identifier, reply in draw.sample(named, count)
    ]


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def other_replies(pool: Path | None, count: int, draw: Random) -> list[str]:
    """Take the first distinct texts of a pool, or put them together of the bundled sample's.

    Raises InvalidInput where there are too few.
    """
    if pool is not None:
        found = _distinct((row.text for row in read_pool([pool]) if isinstance(row, Candidate)), count)
    else:
        sample = [row.text for row in read_pool([SAMPLE / "pool.jsonl"]) if isinstance(row, Candidate)]
        found = _distinct((" ".join(draw.sample(sample, 2)) for _ in range(2 * count)), count)
    if len(found) < count:
        raise InvalidInput(f"{count} other replies are needed, and there are {len(found)}; give a smaller --size")
    return found


def ask(store: Path, queries: Sequence[Asked]) -> list[Found]:
    """Serve a store, and ask it for each reply."""
    with served(store) as server:
        return [_found(server.url, each) for each in queries]


def _found(url: str, asked: Asked) -> Found:
    answer = call(url, "POST", "/rank", {"context": asked.turns, "top_k": DEPTH, "timeout_ms": 10_000})
    first, *_ = results = answer["results"]
    own = next((each for each in results if each["text"] == asked.reply), None)
    return Found(own["rank"] if own else 0, own and own["scores"], first["text"], first["scores"])


def _typed(identifier: str, draw: Random) -> str:
    """Write an identifier as a person may: as it is, in small letters, or without its "#"."""
    return draw.choice([identifier, identifier, identifier.lower(), identifier.lstrip("#")])


def _distinct(texts: Iterable[str], count: int) -> list[str]:
    return list(islice(dict.fromkeys(texts), count))


def print_table(queries: Sequence[Asked], sides: Mapping[str, Sequence[Found]]) -> None:
    """Print how often the reply is first and among the first ten, by kind and in all."""
    heads = [f"{side}: first | among the first {TOP}" for side in sides]
    print(f"| identifier | queries | {' | '.join(heads)} |\n|{' --- |' * (2 + 2 * len(heads))}")
    for kind in (*KINDS, "all"):
        own = [at for at, each in enumerate(queries) if kind in (each.kind, "all")]
        cells = []
        for found in sides.values():
            ranks = [found[at].rank for at in own]
            cells += [sum(rank == 1 for rank in ranks), sum(1 <= rank <= TOP for rank in ranks)]
        print(f"| {kind} | {len(own)} | {' | '.join(map(str, cells))} |")


def print_missed(queries: Sequence[Asked], found: Sequence[Found]) -> None:
    """Print the replies that are not first, and what is first instead."""
    for asked, each in zip(queries, found, strict=True):
        if each.rank != 1:
            place = f"at {each.rank} ({_told(each.scores)})" if each.scores else f"not among the first {DEPTH}"
            print(f"{asked.turns}: {asked.reply!r} {place}, behind {each.first!r} ({_told(each.best)})")


def _told(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def measure(arguments: argparse.Namespace) -> dict[str, list[Found]]:
    """Build and serve both stores; returns what each finds, and prints the table."""
    draw = Random(arguments.seed)
    count = round(NAMED * arguments.size)
    if not 1 <= arguments.queries <= count:
        raise InvalidInput(f"--queries must be from 1 to {count}, a tenth of --size")
    others = other_replies(arguments.pool, arguments.size - count, draw)
    named = named_replies(count, draw, others if arguments.any_text else ())
    queries = asked_for(named, arguments.queries, draw, SHORT_QUERIES if arguments.any_text else ())
    texts = [reply for _, _, reply in named] + others
    draw.shuffle(texts)
    rows = [Candidate(str(at), text) for at, text in enumerate(texts)]
    with two_stores(arguments.model, rows) as stores:
        found = {"words": ask(stores.with_words, queries), "vectors alone": ask(stores.without, queries)}
    print(f"{len(rows)} replies, {count} of them with an identifier; seed {arguments.seed}")
    print_table(queries, found)
    share = sum(each.rank == 1 for each in found["words"]) / len(queries)
    print(f"with words {share:.1%} are first; the goal of {GOAL:.0%} is {'met' if share >= GOAL else 'missed'}")
    print_missed(queries, found["words"])
    return found


def main(given: Sequence[str] | None = None) -> Any:
    """Print the table, or in one line why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="CHECKPOINT", help="it counts words")
    parser.add_argument("--pool", type=Path, help="replies without identifiers; default: made of the bundled sample")
    parser.add_argument("--size", type=int, default=30_000, help="replies in all")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--any-text", action="store_true", help="texts that do not fit the identifiers")
    try:
        return measure(parser.parse_args(given))
    except RankingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
