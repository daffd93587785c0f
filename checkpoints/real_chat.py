"""Write the dialogues to train on, without the replies by which the models are judged.

    python checkpoints/real_chat.py DATA OUTPUT

DATA holds the folders of CONVAI2, STAR, OTHERS, NAMING_DIALOGUES and JUDGES. Left out are replies of six words or more
that are candidates of half A. OUTPUT gets one file for each set, one of what the partners of ConvAI2 replied, whose
persona nobody knows, and `star_held`: lists of 20 over the tasks of STAR that are kept from training. Each line names
its dialogue.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import zstandard

from polyrank.model.lexical.words import normalised, words

FEWEST_WORDS = 6  # shorter replies are said everywhere
JUDGES = "convai2/valid_a.self_original.jsonl.zst"
CONVAI2, PARTNERS = "convai2_train", "convai2_partners"
OTHERS = {
    "multiwoz22_train": "multiwoz22_train/train.en.jsonl.zst",
    "ubuntu_irc": "ubuntu_irc/train.jsonl.zst",
    "synthetic_persona_chat": "synthetic_persona_chat/train.jsonl.zst",
    "taskmaster4": "taskmaster4/train.jsonl.zst",
}
NAMING_DIALOGUES = {  # their rows name the dialogue; the ids of OTHERS name a turn of it
    "chitchat": "chitchat/train.jsonl.zst",
    "zh_crosswoz": "zh_crosswoz/train.jsonl.zst",
    "zh_kdconv": "zh_kdconv/train.jsonl.zst",
}
STAR, HELD = "star", "star_held"
STAR_FILES = "star/train.jsonl.zst", "star/suggestions_train.jsonl.zst"
HELD_TASKS = frozenset(("doctor_schedule", "party_rsvp", "meeting_schedule"))
MOST_NEGATIVES = 3  # of the replies that an agent was shown and did not pick
HELD_LISTS, LIST_SIZE, SEED = 900, 20, 7
KEPT = ("context", "response", "persona", "dialogue", "negatives", "candidates", "label")

Row = dict[str, Any]


def rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a file."""
    with zstandard.open(path, "rt", encoding="utf-8") as lines:
        yield from map(orjson.loads, lines)


def examples(data: Path, name: str) -> Iterator[Row]:
    """Yield the examples of a set with their dialogues: ConvAI2's are numbered by file, the others' ids name a turn."""
    if name in NAMING_DIALOGUES:
        yield from rows(data / NAMING_DIALOGUES[name])
    elif name != CONVAI2:
        yield from ({**row, "dialogue": row["id"].rsplit("-", 1)[0]} for row in rows(data / OTHERS[name]))
    else:
        for path in sorted((data / CONVAI2).glob("*.zst")):
            yield from ({**row, "dialogue": f"{path.name[0]}{row['dialogue']}"} for row in rows(path))


def partners(examples: Iterable[Row]) -> Iterator[Row]:
    """Yield an example for each turn that answers another one and is answered itself."""
    for row in examples:
        if len(row["context"]) > 1:
            yield {"context": row["context"][:-1], "response": row["context"][-1], "dialogue": row["dialogue"]}


def star(data: Path) -> tuple[list[Row], list[Row]]:
    """Return STAR's examples to train on, with negatives where agents chose among suggestions, and those held out."""
    file, suggestions = (data / name for name in STAR_FILES)
    passed_over: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows(suggestions):
        if row["picked"]:
            passed_over[row["dialogue"], row["sent"]].append(row)
    trained, held = list[Row](), list[Row]()
    for row in rows(file):
        if HELD_TASKS.isdisjoint(row["task"].split("+")):
            asked = passed_over[row["dialogue"], row["response"]]
            trained.append({**row, "negatives": _passed_over(row, asked)})
        else:
            held.append(row)
    return trained, held


def _passed_over(row: Row, asked: Iterable[Row]) -> list[str]:
    """Return what was shown beside the reply when it was picked, the last time within this context."""
    found = list[str]()
    for each in asked:
        if each["context"] == row["context"][: len(each["context"])]:
            others = [shown["text"] for shown in each["shown"] if shown["label"] != each["picked"]]
            found = [text for text in others if normalised(text) != normalised(row["response"])] or found
    return found[:MOST_NEGATIVES]


def in_lists(held: list[Row]) -> Iterator[Row]:
    """Yield some examples with 19 replies of the same tasks that their conversations have not had."""
    draw = Random(SEED)
    pool = sorted({row["response"] for row in held})
    for row in draw.sample(held, HELD_LISTS):
        said = {row["response"], *row["context"]}
        candidates = [row["response"], *draw.sample([text for text in pool if text not in said], LIST_SIZE - 1)]
        draw.shuffle(candidates)
        yield {**row, "candidates": candidates, "label": candidates.index(row["response"])}


def main(data: Path, output: Path) -> None:
    """Write all files."""
    candidates = (text for row in rows(data / JUDGES) for text in row["candidates"])
    judging = {normalised(text) for text in candidates if len(words(text)) >= FEWEST_WORDS}
    output.mkdir(parents=True, exist_ok=True)
    trained, held = star(data)
    sets = {name: examples(data, name) for name in (CONVAI2, *OTHERS, *NAMING_DIALOGUES)}
    sets |= {PARTNERS: partners(examples(data, CONVAI2)), STAR: iter(trained), HELD: in_lists(held)}
    for name, found in sets.items():
        with zstandard.open(output / f"{name}.jsonl.zst", "wb") as file:
            for row in found:
                if name == HELD or normalised(row["response"]) not in judging:
                    kept = {field: row[field] for field in KEPT if row.get(field) not in (None, [])}
                    file.write(orjson.dumps(kept) + b"\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
