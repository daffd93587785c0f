"""Write the dialogues to train on, without the replies by which the models are judged.

    python checkpoints/real_chat.py DATA OUTPUT

DATA holds the folders of CONVAI2, OTHERS and JUDGES. Left out are replies of six words or more that are candidates of
ConvAI2's half A. OUTPUT gets one file for each set, and one of what ConvAI2's partners replied, whose persona nobody
knows; each line names its dialogue.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
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


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file."""
    with zstandard.open(path, "rt", encoding="utf-8") as lines:
        yield from map(orjson.loads, lines)


def examples(data: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the examples of a set with their dialogues: ConvAI2's are numbered by file, the others' ids name a turn."""
    if name != CONVAI2:
        yield from ({**row, "dialogue": row["id"].rsplit("-", 1)[0]} for row in rows(data / OTHERS[name]))
        return
    for path in sorted((data / CONVAI2).glob("*.zst")):
        yield from ({**row, "dialogue": f"{path.name[0]}{row['dialogue']}"} for row in rows(path))


def partners(examples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an example for each turn that answers another one and is answered itself."""
    for row in examples:
        if len(row["context"]) > 1:
            yield {"context": row["context"][:-1], "response": row["context"][-1], "dialogue": row["dialogue"]}


def main(data: Path, output: Path) -> None:
    """Write all files."""
    candidates = (text for row in rows(data / JUDGES) for text in row["candidates"])
    judging = {normalised(text) for text in candidates if len(words(text)) >= FEWEST_WORDS}
    output.mkdir(parents=True, exist_ok=True)
    for name in (CONVAI2, PARTNERS, *OTHERS):
        found = partners(examples(data, CONVAI2)) if name == PARTNERS else examples(data, name)
        with zstandard.open(output / f"{name}.jsonl.zst", "wb") as file:
            for row in found:
                if normalised(row["response"]) not in judging:
                    kept = {name: row[name] for name in ("context", "response", "persona", "dialogue") if name in row}
                    file.write(orjson.dumps(kept) + b"\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
