"""What each stage costs: every subject with a small model, and a server that fails."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import encode, scoring, serving, stages
from benchmarks.timing import medians_ms
from command_line import pool_rows, write_rows
from served import serve
from service_fakes import load
from tiny import write_checkpoint

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import read_pool
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    def brief(calls: Mapping[str, Callable[[], Any]], _seconds: float) -> dict[str, float]:
        return medians_ms(calls, 0)

    monkeypatch.setattr(encode, "medians_ms", brief)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints `poly` and `cross`."""
    parent = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return parent


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pool.jsonl", pool_rows(60))


def benched(capsys: Capture, *arguments: object) -> dict[str, Any]:
    stages.main([str(each) for each in arguments])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["bench"] == arguments[0]
    assert set(result["machine"]) >= {"processor", "cores", "torch_threads"}
    return result


def test_scoring(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_SIZES", [(3000, 4, 8), (50, 16, 8)])
    rows = benched(capsys, "scoring", "--seconds", "0")["rows"]
    assert [(row["n"], row["m"], row["d"]) for row in rows] == [(3000, 4, 8), (50, 16, 8)]
    for row in rows:
        times = {"two_products_ms", "closed_form_ms", "top_10_ms", "top_10_of_8_ms"}
        assert set(row) == {"n", "m", "d", "scan", "why", "ratio", "top_10_ratio"} | times
        assert row["scan"] == "stored rows"
        assert min(row[each] for each in times) > 0
        assert row["ratio"] == pytest.approx(row["two_products_ms"] / row["closed_form_ms"], rel=0.1)
        assert row["top_10_ratio"] == pytest.approx(row["two_products_ms"] / row["top_10_ms"], rel=0.1)


def test_both_forms_are_the_papers_score() -> None:
    rng = np.random.default_rng(0)
    candidates, codes = rng.normal(size=(3000, 6)), rng.normal(size=(5, 6))
    s = candidates @ codes.T
    weights = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    expected = ((weights @ codes) * candidates).sum(axis=1)
    for form in (scoring.two_products, scoring.closed_form):
        scores = form(torch.from_numpy(candidates).float(), torch.from_numpy(codes).float()).numpy()
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_encode(capsys: Capture, checkpoints: Path, pool: Path) -> None:
    result = benched(capsys, "encode", "--model", checkpoints / "poly", "--pool", pool)
    candidates, one, ten, mixed = result["rows"]
    assert result["model"] == str(checkpoints / "poly")
    assert (candidates["what"], candidates["count"]) == ("candidates", 60)
    assert candidates["per_second"] > 0
    # A turn is two words; [CLS], [SEP] around, [SEP] between.
    assert (one["what"], one["tokens"]) == ("context of 1 turn", 4)
    assert (ten["what"], ten["tokens"]) == ("context of 10 turns", 31)
    lengths = [1 + 3 * (1 + number % 10) for number in range(32)]
    assert (mixed["what"], mixed["tokens"]) == ("32 contexts of 1 to 10 turns", sum(lengths))
    assert min(one["ms"], ten["ms"], mixed["ms"]) > 0


def test_rerank(capsys: Capture, checkpoints: Path, pool: Path) -> None:
    result = benched(capsys, "rerank", "--model", checkpoints / "cross", "--pool", pool)
    [row] = result["rows"]
    # Three turns of two words with [CLS] and two separators, [SEP], a candidate of two words, [SEP].
    assert (row["pairs"], row["longest_tokens"]) == (50, 13)
    assert row["ms"] > 0


def test_rank_serves_the_store(capsys: Capture, checkpoints: Path, pool: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    build(load_vector_ranker(checkpoints / "poly"), read_pool([pool]), store)
    data = write_rows(tmp_path / "data.jsonl", [{"context": [f"w{n}"], "response": "w1"} for n in range(20)])
    options = ("--store", store, "--data", data, "--requests", 30)
    result = benched(capsys, "rank", *options)
    assert [(row["concurrency"], row["requests"]) for row in result["rows"]] == [(1, 20), (16, 20)]
    for row in result["rows"]:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["per_second"] > 0
    assert result["ready_seconds"] > 0
    assert min(result["rss_mib_after_start"], result["rss_mib_after_load"]) > 50


def test_requests_that_fail_are_counted(tmp_path: Path) -> None:
    bodies = [b'{"context": "w1"}'] * 3
    with (
        serve(create_app(Settings(store={"": tmp_path}), load)) as server,
        pytest.raises(serving.BenchmarkFailed, match=r"^3 requests failed, the first with .*not-ready"),
    ):
        serving._loop(server.url, bodies, 2)
    with pytest.raises(serving.BenchmarkFailed, match=r"^2 requests failed, the first with ConnectionRefusedError"):
        serving._loop(server.url, bodies, 2)


@pytest.mark.parametrize(
    ("subject", "says"), [("encode", "5 texts; 10 are needed"), ("rerank", "5 texts; 53 are needed")]
)
def test_pools_that_are_too_small(checkpoints: Path, tmp_path: Path, subject: str, says: str) -> None:
    pool = write_rows(tmp_path / "pool.jsonl", pool_rows(5))
    name = "cross" if subject == "rerank" else "poly"
    with pytest.raises(InvalidInput, match=says):
        stages.main([subject, "--model", str(checkpoints / name), "--pool", str(pool)])
