"""`polyrank mine`: what it finds, what it refuses, and that its output is complete or absent."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, call, write_rows
from fakes import silent

import polyrank
from polyrank.model.evaluation.mining import Miner, MiningRules, TextPool
from polyrank.model.text.conversations import Positives
from polyrank.model.text.dialogues import Dialogue, read_dialogues

Capture = pytest.CaptureFixture[str]

KEYS = ["model", "output", "examples", "negatives", "without_negatives", "filtered", "seconds"]
POOL = [{"text": f"w{n % 12} w{n * 7 % 33}", "id": str(n)} for n in range(150)]
DATA: list[dict[str, Any]] = [
    {"context": [f"w{n % 20} w{n % 7}"], "persona": ["w1 w2"], "response": POOL[n * 5 % 150]["text"]} for n in range(30)
]
DATA[3] |= {"candidates": ["no", DATA[3]["response"]], "label": 1, "negatives": ["old"], "dialogue": "third"}


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    """Arguments for a pool and data, in a directory that holds nothing else."""
    data, pool = write_rows(tmp_path / "data.jsonl", DATA), write_rows(tmp_path / "pool.jsonl", POOL)
    return ["--data", data, "--pool", pool]


def mine(capsys: Capture, model_path: Path, files: list[object], output: Path, *options: object) -> Outcome:
    return call(capsys, "mine", "--model", model_path, *files, "--output", output, *options)


def test_a_pool_means_the_same_in_another_format_and_encoding(
    capsys: Capture, checkpoints: Path, files: list[object], tmp_path: Path
) -> None:
    pool = tmp_path / "pool.csv"
    pool.write_text("_id\ttext\n" + "".join(f"{row['id']}\t{row['text']}\n" for row in POOL), encoding="utf-16-le")
    outputs = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    mine(capsys, checkpoints / "poly", files, outputs[0], "--depth", 20, "--json")
    asked = [*files[:-1], pool, "--encoding", "utf-16-le"]
    assert mine(capsys, checkpoints / "poly", asked, outputs[1], "--depth", 20, "--json").result["negatives"]
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


@pytest.mark.parametrize(("options", "rules", "check"), [
    (["--depth", "20"], MiningRules(depth=20, skip=5, margin=0.05, negatives=7), None),
    (["--margin", "off", "--negatives", "200", "--skip", "2", "--check-margin", "0.25"],
     MiningRules(depth=100, skip=2, margin=None, negatives=200, check_margin=0.25), "cross"),
], ids=["usual", "others"])  # fmt: skip
def test_negatives_are_those_of_the_rules_that_are_asked_for(
    capsys: Capture, checkpoints: Path, files: list[object], tmp_path: Path, options, rules: MiningRules, check
) -> None:
    output = tmp_path / "out.jsonl"
    asked = [*options, "--json", *(["--check", checkpoints / check] if check else [])]
    result = mine(capsys, checkpoints / "poly", files, output, *asked).result
    ranker, reader = (polyrank.load(checkpoints / name) if name else None for name in ("poly", check))
    before, after = (list(read_dialogues(path)) for path in (tmp_path / "data.jsonl", output))
    pool = TextPool.encode(ranker, [str(row["text"]) for row in POOL], silent)
    miner = Miner(ranker, pool, Positives(before), rules, reader)
    assert after == list(miner.mine(before))
    assert list(result) == KEYS
    assert (result["model"], result["output"]) == (str(checkpoints / "poly"), str(output))
    assert (result["examples"], result["negatives"]) == (30, sum(len(each.negatives) for each in after))
    assert result["without_negatives"] == sum(not each.negatives for each in after)
    assert list(result["filtered"]) == ["positive", "rank", "margin", "check"]
    assert result["negatives"] > 20
    assert (result["filtered"]["margin"] > 0) == (rules.margin is not None)
    assert result["filtered"]["rank"] == 30 * rules.skip
    assert (result["filtered"]["check"] > 0) == (check is not None)


def test_the_same_inputs_and_seed_give_the_same_bytes(capsys, checkpoints: Path, files: list[object], tmp_path) -> None:
    def mined(name: str, *options: object) -> bytes:
        arguments = ["--margin", "off", "--sample", "--negatives", "3", *options]
        assert mine(capsys, checkpoints / "poly", files, tmp_path / name, *arguments).status == 0
        return (tmp_path / name).read_bytes()

    first = mined("a.jsonl")
    assert mined("b.jsonl") == mined("b.jsonl", "--seed", 0) == first
    assert mined("c.jsonl", "--seed", 1) != first
    packed = mined("d.jsonl.gz")
    assert mined("e.jsonl.gz") == packed
    assert gzip.decompress(packed) == first
    mined("f.jsonl.zst")
    assert list(read_dialogues(tmp_path / "f.jsonl.zst")) == list(read_dialogues(tmp_path / "a.jsonl"))


def test_words_count_what_was_found_and_what_was_left_out(
    capsys: Capture, checkpoints: Path, files: list[object], tmp_path: Path
) -> None:
    with (tmp_path / "pool.jsonl").open("a") as pool:
        pool.write('{"text": ""}\n{"text": 3}\n')
    outcome = mine(capsys, checkpoints / "poly", files, tmp_path / "out.jsonl", "--skip", "19", "--depth", "20")
    assert (outcome.status, outcome.out) == (0, "")
    rejected, summary, without = outcome.err.splitlines()
    assert rejected == (f"rows of the pool left out: 2; one of them: {tmp_path / 'pool.jsonl'}:151: 'text' is empty")
    assert " negatives for 30 examples in " in summary
    assert "; left out: positive " in summary
    assert summary.endswith(", check 0")
    assert without.endswith(" examples have none; a larger --depth leaves more")


def test_bad_lines_are_left_out_and_told_as_in_training(
    capsys: Capture, checkpoints: Path, files: list[object], tmp_path: Path
) -> None:
    output, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    assert mine(capsys, checkpoints / "poly", files, whole).status == 0
    rows = [{"context": ["w1"]}, *DATA[:20], ["no object"], *DATA[20:], {"context": ["w1"], "response": 3}]
    data = write_rows(tmp_path / "data.jsonl", rows)
    options = ["--max-rejected", 3 / 33]
    result = mine(capsys, checkpoints / "poly", files, output, *options)
    assert result.status == 0
    no_text, no_object = "response must be a text (first in line 1)", "the line is not a JSON object (first in line 22)"
    found = f"30 examples; 2 dropped: {no_text}; 1 dropped: {no_object}"
    assert result.err.splitlines()[0] == f"{data}: {found}"
    assert output.read_bytes() == whole.read_bytes()
    output.unlink()
    for options in ([], ["--max-rejected", 0.09]):
        message = mine(capsys, checkpoints / "poly", files, output, *options).failure()
        assert message == f"{data}: too many bad lines: {found}; mend them or raise --max-rejected"
    assert not output.exists()


def test_several_pools_are_one(capsys: Capture, checkpoints: Path, files: list[object], tmp_path: Path) -> None:
    more = write_rows(tmp_path / "more.jsonl", [{"text": "w30 w31 w32", "id": "more"}])
    output = tmp_path / "out.jsonl"
    options = ["--margin", "off", "--skip", "0", "--negatives", "200", "--depth", "200"]
    assert mine(capsys, checkpoints / "poly", [*files, more], output, *options).status == 0
    assert all("w30 w31 w32" in each.negatives for each in read_dialogues(output))


@pytest.mark.parametrize("existing", [None, "what was there before"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_fails_half_way_leaves_what_was_there(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    checkpoints: Path,
    files: list[object],
    tmp_path: Path,
    existing: str | None,
    error: BaseException,
) -> None:
    def mined(_self: Miner, dialogues: Iterator[Dialogue]) -> Iterator[Dialogue]:
        yield next(dialogues)
        raise error

    monkeypatch.setattr(Miner, "mine", mined)
    output = tmp_path / "out.jsonl"
    if existing:
        output.write_text(existing)
    message = mine(capsys, checkpoints / "poly", files, output).failure()
    assert message in ("interrupted; nothing was left half-written", "No space left on device")
    assert (output.read_text() if output.exists() else None) == existing
    assert {path.name for path in tmp_path.iterdir()} <= {"data.jsonl", "pool.jsonl", "out.jsonl"}
