"""The bundled sample is what its README says, and the example script runs on it."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from warm_python import WarmPython

from polyrank.service.api.requests import RankIn

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "examples" / "support"


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SUPPORT / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def pool() -> list[dict[str, Any]]:
    return _rows("pool.jsonl")


@pytest.fixture(scope="module")
def conversations() -> list[dict[str, Any]]:
    return _rows("conversations.jsonl")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value == value.strip() != ""


def test_the_pool_has_the_documented_form_and_covers_many_topics_evenly(pool: list[dict[str, Any]]) -> None:
    for row in pool:
        assert set(row) == {"id", "text", "metadata"}
        assert _is_text(row["id"])
        assert _is_text(row["text"])
        assert set(row["metadata"]) == {"topic", "language", "kind"}
        assert row["metadata"]["language"] == "en"
        assert (row["metadata"]["kind"] == "question") == row["text"].endswith("?")
    assert len({row["id"] for row in pool}) == len({row["text"].casefold() for row in pool}) == len(pool)
    topics = Counter(row["metadata"]["topic"] for row in pool)
    assert len(topics) >= 25
    assert min(topics.values()) >= 10


def test_conversations_have_the_documented_form(
    pool: list[dict[str, Any]], conversations: list[dict[str, Any]]
) -> None:
    required, texts = {"id", "context", "response", "candidates", "label"}, {row["text"] for row in pool}
    for row in conversations:
        assert required <= set(row) <= required | {"persona"}
        assert 1 <= len(row["context"]) <= 7
        assert all(map(_is_text, [*row["context"], *row.get("persona", [])]))
        assert len(row["candidates"]) == len(set(row["candidates"])) == 20
        assert set(row["candidates"]) <= texts
        assert type(row["label"]) is int
        assert row["candidates"].index(row["response"]) == row["label"]
    assert len(conversations) == len({row["id"] for row in conversations}) == 200
    assert len({tuple(row["context"]) for row in conversations}) == 200
    places = Counter(row["label"] for row in conversations)
    assert len(places) == 20, "no place is left out"
    assert max(places.values()) <= 20, "and none is the favourite"


def test_the_readme_counts_are_right(pool: list[dict[str, Any]], conversations: list[dict[str, Any]]) -> None:
    readme = (SUPPORT / "README.md").read_text(encoding="utf-8")
    assert f"{len(pool)} replies on {len({row['metadata']['topic'] for row in pool})} topics" in readme
    assert f"{sum('persona' in row for row in conversations)} of them with a `persona`" in readme


def test_quickstart_is_valid_shell_and_sends_valid_requests(pool: list[dict[str, Any]]) -> None:
    script = ROOT / "examples" / "quickstart.sh"
    subprocess.run(["sh", "-n", script], check=True)
    bodies = re.findall(r"-d '(.+?)'", script.read_text(encoding="utf-8"), flags=re.DOTALL)
    answered, nonsense, over_pool, reranked, given = [RankIn.model_validate_json(body) for body in bodies]
    assert answered.answer_if
    assert nonsense.answer_if
    assert (over_pool.candidates, over_pool.rerank) == (None, False)
    assert reranked == over_pool.model_copy(update={"rerank": reranked.rerank})
    assert reranked.rerank
    assert given.candidates is not None
    named = {candidate.id for candidate in given.candidates if not isinstance(candidate, str)}
    assert named
    assert named <= {row["id"] for row in pool}


def test_rank_in_python_prints_three_replies_of_the_pool(warm_python: WarmPython, pool: list[dict[str, Any]]) -> None:
    process = warm_python.start(ROOT / "examples" / "rank_in_python.py")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    scores, replies = zip(*(line.split(maxsplit=1) for line in out.splitlines()), strict=True)
    assert len(replies) == 3
    assert set(replies) <= {row["text"] for row in pool}
    assert sorted(map(float, scores), reverse=True) == [float(score) for score in scores]
