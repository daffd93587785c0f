"""The scripts for a GPU run on a CPU, over tiny shapes."""

import json

import pytest
from benchmarks import paper_table
from benchmarks.gpu import speed
from benchmarks.paper_table import MODELS, PAPER, table
from benchmarks.timing import quartiles_ms


def test_speed_on_a_gpu_runs_without_one_and_checks_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--device", "cpu", "--tiny", "--seconds", "0"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[0]["device"] == "CPU"
    assert [row["wrong"] for row in told if row.get("what") == "check"] == [0] * 4
    assert {(row["d"], row["m"], row["contexts"]) for row in told if row.get("what") == "scan"} == {
        (d, m, contexts) for d in (384, 768) for contexts, m in ((1, 64), (1, 1), (1, 360), (8, 64), (32, 64))
    }
    assert {row["contexts"] for row in told if row.get("what") == "rank"} == {1, 32}
    assert [row["candidates"] for row in told if row.get("what") == "build"] == [64] * 3


def test_the_papers_table_has_every_model_and_the_papers_own_figures(capsys: pytest.CaptureFixture[str]) -> None:
    paper_table.main(["--shape", "tiny", "--seconds", "0"])
    out, said = capsys.readouterr()
    assert [json.loads(line)["model"] for line in out.splitlines()] == list(MODELS)
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")]
    assert {row[0].removeprefix("| ") for row in rows} >= set(MODELS)
    assert {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows if "," in row[-1]} == {
        "Bi": "115, 160",
        "Poly, first 16": "119, 551",
        "Poly, first 64": "124, 570",
        "Poly, first 360": "120, 619",
        "Poly, learnt 16": "122, 678",
        "Poly, learnt 64": "126, 692",
        "Poly, learnt 360": "160, 837",
        "Cross": "21,700, 2,200,000",
    }


def test_a_gpu_is_compared_with_the_papers_gpu() -> None:
    took = {"encode": [2.0, 1.9, 2.1], "1000": [0.1, 0.1, 0.1], "100000": [1.04, 1.0, 1.1]}
    row = {"model": "Bi", "milliseconds": took, "total": [2.1, 3.04]}
    line = table([row], "cuda", (1_000, 100_000)).splitlines()[-1]
    assert line == "| Bi | 2.0 (1.9-2.1) | 0.1 (0.1-0.1) | 1.0 (1.0-1.1) | 2.1 | 3.0 | 19, 22 |"
    assert set(PAPER) == set(MODELS)
    assert {name: figures["cuda"] for name, figures in PAPER.items()} == {
        "Bi": (19, 22),
        **{f"Poly, first {m}": (17, second) for m, second in ((16, 37), (64, 39), (360, 45))},
        "Poly, learnt 16": (18, 38),
        "Poly, learnt 64": (23, 46),
        "Poly, learnt 360": (57, 88),
        "Cross": (2_600, 266_000),
    }


def test_quartiles_are_in_milliseconds() -> None:
    seconds = iter([9.0, 0.001, 0.002, 0.003])
    took = quartiles_ms({"call": lambda: next(seconds)}, 0.0, rounds=3, measure=lambda call: call())
    assert took == {"call": [2.0, 1.5, 2.5]}
