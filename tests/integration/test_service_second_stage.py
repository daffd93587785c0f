"""Models with a second stage from training to a server's answer: the scores are those of `rank` everywhere."""

import math
from pathlib import Path
from typing import Any

import pytest
from service_fakes import asked, build_store, open_serving, rank
from tiny import write_base
from tiny_training import run, settings, write_examples

import polyrank
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.rankers.late import LateRanker
from polyrank.service.ranking.values import Given, Ranked

TEXT = "w1 w1 w20 w30"
TEXTS = [f"w{n % 8} " + " ".join(f"w{(n * 7 + at) % 40}" for at in range(n % 5)) for n in range(30)]
POOL = [Candidate(f"c{at}", text, {}) for at, text in enumerate(TEXTS)]


ROWS = {"colbert": (128, None), "deformer": (16, None), "mix": (16, 2), "virt": (16, None)}
OPTIONS: dict[str, dict[str, Any]] = {
    "colbert": {},
    "deformer": {"upper_layers": 1},
    "mix": {"rows": 2, "interaction_layers": [-2, -1]},
    "virt": {"residual": False},
}


@pytest.fixture(scope="module", params=ROWS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, name = tmp_path_factory.mktemp(request.param), request.param
    base = write_base(directory / "base", 3, ["[MASK]", "[unused0]", "[unused1]"])
    recipe: dict[str, Any] = {"shared_encoder": True, "learning_rate": 2e-3, "steps": 30, "gradient_cache": True}
    config = settings(base, architecture=name, **recipe, **OPTIONS[name])
    run(config, write_examples(directory / "examples.jsonl"), directory / "trained")
    return directory / "trained"


def test_training_leaves_a_checkpoint_that_ranks(checkpoint: Path) -> None:
    ranker = polyrank.load(checkpoint)
    assert isinstance(ranker, LateRanker)
    assert ranker.config.training["settings"]["first_weight"] == 1.0
    found = ranker.rank(["w1 w1", "w20 w30"], ["w4", "w5", "w6", "w7"])
    assert found[0][0] == 1, "the reply follows from the context's first word"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_sent_along_and_by_id_score_as_rank_does(checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    ranker = polyrank.load(checkpoint)
    assert isinstance(ranker, LateRanker)
    wanted = {f"c{at}": score for at, score in ranker.rank(TEXT, TEXTS)}
    build_store(tmp_path, POOL, ranker=ranker, dtype=dtype)  # type: ignore[arg-type]
    serving = open_serving(tmp_path, load=polyrank.load)
    late = serving.generation.manifest.late
    assert late is not None
    assert (late.dim, late.count) == ROWS[ranker.architecture]
    stored = rank(serving, asked(TEXT, top_k=30))
    inline = rank(serving, asked(TEXT, top_k=30, candidates=tuple(Given(each.id, each.text) for each in POOL)))
    by_id = rank(serving, asked(TEXT, top_k=30, candidates=tuple(Given(each.id, None) for each in POOL)))
    for ranked in (stored, inline, by_id):
        assert_scores(ranked, wanted, 1e-4 if dtype == "float32" else 0.02)
    assert stored.exact


def assert_scores(ranked: Ranked, wanted: dict[str, float], tolerance: float) -> None:
    assert ranked.degraded == []
    scores = {str(place.id): place.score for place in ranked.places}
    assert scores == pytest.approx(wanted, abs=tolerance)
    assert all(math.isfinite(score) for score in scores.values())
