"""What words are worth and cost, measured over tiny models."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from benchmarks.random_models import TINY, loaded, write_base
from benchmarks.words import quality
from benchmarks.words.parts import VECTORS, WHOLE, all_but

from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.config import LexicalConfig
from polyrank.model.inference.runners import Runner
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.service.cli.commands.evaluate import measure

WEIGHTS = {"persona": 2.0, "last": 4.0, "before": 1.0, "said": -2.0, "length": 0.2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("models") / "base", TINY)


def checkpoint(base: Path, name: str, weights: dict[str, float] | None) -> Path:
    """Write a Poly-encoder with random weights; all of them share their vectors."""
    path = base.parent / name
    if not path.exists():
        torch.manual_seed(0)  # of the codes
        loaded(base, name, "cpu", Runner("torch", "float32"), architecture="poly", n_codes=4, max_context_tokens=64)
        evidence = None if weights is None else LexicalConfig(late_weight=0.3, weights=weights)
        write_config(path / CONFIG_FILE, replace(read_config(path / CONFIG_FILE), evidence=evidence))
    return path


def write_lists(path: Path, count: int = 120) -> Path:
    """Write examples, three a dialogue, whose reply shares words with the context."""
    draw = Random(0)
    replies = [" ".join(f"w{draw.randrange(300)}" for _ in range(draw.randint(1, 7))) for _ in range(count)]
    with new_dialogues(path) as add:
        for at, reply in enumerate(replies):
            turns = [*draw.sample(replies, 2), f"{reply.split()[-1]} w{draw.randrange(300)}"]
            wrong = [text for text in draw.sample(replies, 12) if text != reply and text not in turns]
            names = dict.fromkeys([reply, *wrong])
            candidates = draw.sample(list(names), len(names))
            persona = [f"w{draw.randrange(300)} {reply.split()[0]}"]
            label = candidates.index(reply)
            add(Dialogue(Conversation.of(turns, persona), reply, tuple(candidates), label, (), str(at // 3)))
    return path


def tables(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line[:1] == "|"]


def cell(evaluated: dict[str, Any], sign: str = "") -> str:
    low, high = evaluated["interval"]["recall@1"]
    return f"{evaluated['recall@1']:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def test_the_figures_are_those_of_evaluate(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_lists(tmp_path / "valid.jsonl")
    words, plain = checkpoint(base, "words", WEIGHTS), checkpoint(base, "plain", None)
    less = {name: weight for name, weight in WEIGHTS.items() if name != "last"}
    without = checkpoint(base, "without-last", less)
    quality.main(["--data", str(data), "--model", str(words)])
    found = {row[1]: row for row in tables(capsys.readouterr().out)[2:]}
    expected = [measure(str(each), data).as_object() for each in (words, plain, without)]
    assert [found[part][2] for part in (WHOLE, VECTORS, all_but("last"))] == [cell(each) for each in expected]
    assert len({each["recall@1"] for each in expected}) == 3, "else the parts may have been mixed up"
    gained = expected[0]["recall@1"] - expected[1]["recall@1"]
    assert float(found[VECTORS][3].split()[0]) == pytest.approx(gained, abs=1e-3)


def test_two_models_are_compared(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_lists(tmp_path / "valid.jsonl")
    words, plain = (str(checkpoint(base, *each)) for each in (("words", WEIGHTS), ("plain", None)))
    quality.main(["--data", str(data), "--model", words, "--against", plain])
    rows = {tuple(row[:2]): row[2:] for row in tables(capsys.readouterr().out)}
    own, others = (measure(each, data).as_object()["recall@1"] for each in (words, plain))
    difference = rows[WHOLE, "words - plain"]
    assert float(difference[0].split()[0]) == pytest.approx(own - others, abs=1e-3)
    assert rows[VECTORS, "words - plain"][0] == "+0.000 [+0.000, +0.000]"


def test_a_file_without_lists_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"context": ["hi"], "response": "hello"}))
    with pytest.raises(SystemExit) as ended:
        quality.main(["--data", str(data), "--model", "m"])
    assert ended.value.code == 1
    assert "no example has `candidates`" in capsys.readouterr().err
