"""Files as other tools write them, for tests of what reads them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from polyrank.index_builder.convert.conversion import Conversion, convert
from polyrank.index_builder.convert.kinds import kinds_of
from polyrank.index_builder.convert.maps import shipped
from polyrank.index_builder.convert.talks import ConvertOptions

SHAREGPT: list[dict[str, Any]] = [
    {
        "id": "QWJhYvA_0",
        "conversations": [
            {"from": "human", "value": "Wo bleibt mein Päckchen?"},
            {"from": "gpt", "value": "Wie ist die Nummer?"},
            {"from": "human", "value": "你好 5519"},
            {"from": "gpt", "value": "مرحبا, unterwegs."},
        ],
    },
    {"id": "i6IyJda_0", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
]
OPENAI: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": [{"type": "text", "text": "Six times"}, {"type": "text", "text": "seven?"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            {"role": "assistant", "content": "It is 42.", "weight": 1},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "Well.", "weight": 0},
        ],
        "tools": [],
    }
]
CONVAI2 = (
    "1 your persona: i like tea.\n"
    "2 partner's persona: i like coffee.\n"
    "3 hi , how are you ?\tfine .\t\tno .|fine .\n"
    "4 good\twhat's up ?\t\ta|b|what's up ?\n"
    "1 your persona: i am five.\n"
    "2 __SILENCE__\thello\n"
    "3 hey there\tyo|hey\n"
)
HELPDESK = (
    "Ticket ID;Created At;Sender Type;Body\n"
    '1;2026-01-02 10:00;customer;"Wo bleibt mein Päckchen?\nSeit Tagen!"\n'
    "2;2026-01-02 10:01;customer;Hallo\n"
    "1;2026-01-02 10:05;agent;Unterwegs.\n"
    "1;2026-01-02 10:04;agent;Moment.\n"
    ";2026-01-02 10:06;agent;Verloren\n"
    "2;2026-01-02 10:07;agent;\n"
)
COLUMNS = {"conversation": "Ticket ID", "who": "Sender Type", "text": "Body", "time": "Created At"}
HITS = [
    {"_index": "faq", "_id": str(n), "_score": 1.0, "_source": {"body": f"text [{n}]", "tags": ["a"], "v": [0.5] * 64}}
    for n in range(3)
]
SEARCH = {
    "took": 5,
    "_shards": {"total": 1},
    "hits": {"total": {"value": 3, "relation": "eq"}, "hits": HITS},
    "aggregations": {"by": {"buckets": [{"key": "x", "doc_count": 1}]}},
}
BULK = (
    '{"index":{"_index":"faq","_id":"1"}}\n{"text":"one","n":1}\n{"create":{"_id":"2"}}\n{"text":"two"}\n'
    '{"delete":{"_id":"1"}}\n{"update":{"_id":"3"}}\n{"doc":{"text":"three"}}\n{"index":{}}\n{"text":"four"}\n'
)
SCROLL = {
    "result": {
        "points": [
            {"id": 1, "payload": {"page_content": "one", "metadata": {"source": "a"}}, "vector": [0.1, 0.2]},
            {"id": "6f1c", "payload": {"text": "two", "lang": "en"}, "vector": None},
            {"id": 3, "payload": None, "vector": None},
        ],
        "next_page_offset": 4,
    },
    "status": "ok",
    "time": 0.0002,
}


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def saved(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A folder as `Dataset.save_to_disk` of the library datasets writes it."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as to,
    ):
        to.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def beir(folder: Path) -> Path:
    """A collection as BEIR's archives unpack."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{n}", "title": f"Title {n}", "text": f"text {n}", "metadata": {}} for n in range(3)]
    (folder / "corpus.jsonl").write_text(lines(corpus))
    (folder / "queries.jsonl").write_text(lines([{"_id": f"q{n}", "text": f"query {n}"} for n in range(2)]))
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(f"{head}q0\td0\t1\nq0\td1\t0\nq9\td0\t1\n")
    (folder / "qrels" / "test.tsv").write_text(f"{head}q1\td2\t2\n")
    return folder


def converted(folder: Path, *files: Path, form: str | None = None, columns: Any = None, **asked: Any) -> Conversion:
    """Convert files into the folder's `out`, by the map of that name or by the one that fits."""
    found = kinds_of(files, shipped()[form] if form else None, columns or {})
    return convert(found, folder / "out", ConvertOptions(**asked), lambda *_: None)


def written(folder: Path, name: str = "dialogues") -> list[dict[str, Any]]:
    """The rows of a file that a conversion wrote."""
    return [json.loads(line) for line in (folder / "out" / f"{name}.jsonl").read_text().splitlines()]
