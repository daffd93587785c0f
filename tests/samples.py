"""A small file of the shape that each tool publishes, what it becomes, and the same with its messages shuffled."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import jmespath
from foreign import lines, written

from polyrank.index_builder.convert.maps import shipped

FILES = {re.split(r"\.(?!1\b)", path.name)[0]: path for path in (Path(__file__).parent / "data/convert").iterdir()}
Q, A, Q2, A2 = "Where is my parcel?", "What is its number?", "It is 5519.", "It comes tomorrow."
WRONG, TWO = "No idea.", [([Q], A), ([Q, A, Q2], A2)]
NAMED = (
    "slack",
    "discord",
    "telegram",
    "whatsapp",
    "teams",
    "messenger",
)  # the file says who speaks, and nobody who answers
# Every other sample gives TWO.
OTHERS: dict[str, list[tuple[list[str], str]]] = {
    "argilla": [([Q, A, Q2], A2), ([Q], A), ([Q], A)],
    "beir": [(["query 0"], "Title 0 text 0")],
    "chatgpt": [([Q], A), ([Q], "Which parcel?"), ([Q, A, Q2], A2)],
    "dolly": [([f"{Q2}\n{Q}"], A2)],
    "dstc7": [([Q, A, Q2], A2)],
    "hh-rlhf": [([Q, A, Q2], A2)],
    "label-studio": [([Q, A, Q2], A2)],
    "llama-factory": [(["Be brief.", Q, A, "It is\n5519."], A2), ([Q], A)],
    "llama-factory-kto": [([Q], A), ([Q2], A2)],
    "llama-factory-preference": [([Q, A, Q2], A2), ([Q], A)],
    "ms-marco": [([Q], A2)],
    "ms-marco-triples": [([Q], A2), ([Q], A2)],
    "oasst": [([Q, A, Q2], A2), ([Q], A), ([Q], "Which parcel?")],
    "oasst-trees": [([Q], A), ([Q, A, Q2], A2), ([Q], "Which parcel?")],
    "openai": [(["Be brief.", Q, A, Q2], A2)],
    "openai-preference": [([Q, A, Q2], A2)],
    "parlai": [*TWO, (["hello", "hi"], "yo"), (["hello", "hi"], "hey")],
    "parlai-fields": [*TWO, (["hi"], "hey")],
    "preference": [(["Be brief.", Q], A)],
    "prompt-completion": [([Q], A)],
    "quac": [([Q], A), ([Q, A, "Why?", "CANNOTANSWER", Q2], A2)],
    "question-answer": [([Q], A)],
    "slack": [([f"{Q[:-1]} & bill?"], A), ([f"{Q[:-1]} & bill?", A, Q2], A2)],
    "squad": [(["When are parcels sent?"], "The shop sends parcels on Mondays.")],
    "telegram": [([Q], "See https://shop.example/track."), ([Q, "See https://shop.example/track.", Q2], A2)],
    "trl-preference": [([Q, A, Q2], A2), ([Q], A)],
    "trl-kto": [([Q], A), ([Q2], A2)],
    "ubuntu-csv": [([f"{Q} Hello?", A], Q2)],
    "whatsapp": [([f"{Q}\nI have waited."], A), ([f"{Q}\nI have waited.", A, Q2], A2)],
}
DOCUMENTS = {"elasticsearch", "elasticsearch-bulk", "qdrant", "hf-documents"}


def asked(name: str) -> dict[str, Any]:
    return {"answering": ("Anna",)} if name in NAMED else {}


def read(folder: Path) -> list[tuple[list[str], str]]:
    rows = written(folder)
    return [
        ([each if isinstance(each, str) else each["content"] for each in row["context"]], row["response"])
        for row in rows
    ]


TIMED = [name for name, used in shipped().items() if "time" in used.paths and name not in ("slack", "whatsapp")]


def shuffled(name: str, draw: Random) -> str:
    """The sample with its messages in another order: those of a list, or rows."""
    used, path = shipped()[name], FILES[name]
    if path.suffix == ".csv":
        head, *rows = re.findall(r'(?:"[^"]*"|[^"\n])+\n', path.read_text())
        return head + "".join(draw.sample(rows, len(rows)))
    value = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.suffix == ".jsonl"
        else json.loads(path.read_text())
    )
    place = {"intercom": "conversation_parts.conversation_parts", "livechat": "thread.events"}.get(
        name, used.paths.get("messages", "")
    )
    each = next(
        (each for each in used.each if each and jmespath.search(each, value)), "[]" if isinstance(value, list) else "@"
    )
    found = (
        [
            record[place] if place in record else jmespath.search(place, record)
            for record in (jmespath.search(each, value) if each != "@" else [value])
        ]
        if place
        else [jmespath.search(each.removesuffix("[]"), value) if each != "[]" else value]
    )
    for messages in found:
        draw.shuffle(messages)
    return lines(value) if path.suffix == ".jsonl" else json.dumps(value)
