"""The benchmark of all systems at full size, over tiny models and made-up sets."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import pytest
import zstandard
from benchmarks import systems as conversations
from benchmarks.gpu import systems
from benchmarks.random_models import TINY, write_base

import polyrank
from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.service.cli.commands.evaluate import measure


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(b"".join(orjson.dumps(row) + b"\n" for row in rows)))


@pytest.fixture
def data(data: Path) -> Path:
    """Pairs of sentences and collections of passages beside the conversations."""
    for part, count in (("train", 60), ("valid", 12)):
        labels = ("contradiction", "entailment", "neutral")
        pairs = [{"a": f"w{n % 7} w9", "b": f"w{20 + n % 3}", "label": labels[n % 3]} for n in range(count)]
        write(data / "sick" / f"{part}.jsonl.zst", pairs)
    for name in systems.COLLECTIONS:
        write(data / name / "corpus.jsonl.zst", [{"_id": f"d{n}", "text": f"w{n} w{n % 5}"} for n in range(40)])
        (data / name / "qrels").mkdir()
        for part, numbers in (("train", range(30)), ("dev", range(30, 40))):
            write(data / name / f"queries.{part}.jsonl.zst", [{"_id": f"q{n}", "text": f"w{n + 3}"} for n in numbers])
            judged = "".join(f"q{n}\td{n}\t1\nq{n}\td{(n + 1) % 40}\t0\n" for n in numbers)
            (data / name / "qrels" / f"{part}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return data


def ndcg(checkpoint: Path) -> float:
    """The mean over the dev queries, of which each has one relevant document."""
    ranker = polyrank.load(checkpoint)
    found = [ranker.rank(f"w{n + 3}", [f"w{at} w{at % 5}" for at in range(40)]) for n in range(30, 40)]
    places = [1 + [at for at, _ in ranked].index(n) for n, ranked in zip(range(30, 40), found, strict=True)]
    return sum(1 / math.log2(1 + place) for place in places if place <= 10) / 10


def test_one_command_makes_every_table_and_goes_on_where_it_was_stopped(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, output = write_base(tmp_path / "base", TINY), tmp_path / "out"
    steps = ["--pair-steps", "2", "--passage-steps", "2", "--steps", "2", "--pool", "60", "--seeds", "0"]
    given = ["--data", str(data), "--output", str(output), "--base", str(base), *steps, "--systems"]
    systems.main([*given, "bi"])
    capsys.readouterr()
    written = (output / "chats" / "bi-0" / WEIGHTS_FILE).stat().st_mtime_ns
    systems.main([*given, "cross", "mix-a", "bi"])
    assert (output / "chats" / "bi-0" / WEIGHTS_FILE).stat().st_mtime_ns == written
    table = capsys.readouterr().out
    rows = [line.split(" | ") for line in table.splitlines() if not line.startswith(("| ---", "| model", "| set"))]
    assert [row[0].removeprefix("| ") for row in rows[:9]] == [*("bi", "mix", "cross"), *("bi", "mix-a", "cross") * 2]
    for row, system in zip(rows[3:5], ("bi", "mix-a"), strict=True):  # on scifact
        assert row[1].startswith(f"{ndcg(output / 'passages' / f'{system}-0'):.3f} [")
    told = measure(str(output / "chats" / "mix-a-0"), data / conversations.YARDSTICKS["ConvAI2"]).as_object()
    assert f"| ConvAI2 | mix-a | 12 | {told['recall@1']:.3f} [" in table
    timed = table[table.index("| system | ms, 50") :].splitlines()
    assert re.fullmatch(r"\| cross \| [\d.]+ \| [\d.]+ \|  \| 1.0 \| 0 \|", timed[-1])
    assert timed[2].endswith(f" | {2 * TINY.dim} |"), "a vector of float16"
    systems.main([*given, "cross", "mix-a", "bi"])
    assert capsys.readouterr().out == table


def test_a_cross_encoder_alone_has_no_passages_to_read(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_base(tmp_path / "base", TINY)
    steps = ["--pair-steps", "1", "--passage-steps", "2", "--seeds", "0", "--systems", "cross"]
    with pytest.raises(SystemExit):
        systems.main(["--data", str(data), "--output", str(tmp_path / "out"), "--base", str(base), *steps])
    assert "add bi to --systems" in capsys.readouterr().err


@pytest.mark.parametrize("system", systems.QUICKEST)
def test_every_system_has_recipes(system: str) -> None:
    assert system in conversations.SYSTEMS
    assert systems.chats(system, "base", 100, 0).max_context_tokens == 256
    assert systems.passages(system, "base", 100, 0).max_candidate_tokens == 256
