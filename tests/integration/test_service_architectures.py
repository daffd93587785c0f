"""Every architecture that retrieves, from training to a server's answer: the ranking is that of `rank` everywhere."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from in_process import TestClient
from service_fakes import asked as request_of
from service_fakes import build_store, open_serving, rank
from tiny import write_base
from tiny_training import run, settings, write_examples

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.vectors.local import LATE_FILE, MATRIX_FILE
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.assembly import Conversation
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

SAID = ["w1 w1", "w20 w30"]
LONG = " ".join(f"w{n}" for n in range(25))  # more than a candidate may have
TEXTS = [f"w{n % 8} " + " ".join(f"w{(n * 7 + at) % 40}" for at in range(n % 5)) for n in range(30)] + [LONG]
POOL = {f"c{at}": text for at, text in enumerate(TEXTS)}
OTHERS = {f"d{at}": f"{text} w{at}" for at, text in enumerate(TEXTS[:20])}
UPSERTED = {"c1": "w5 w6 w7", "c2": TEXTS[3], "new": LONG}
OPTIONS: dict[str, dict[str, Any]] = {  # other than by default, where that asks more of the stages
    "deformer": {"upper_layers": 1},
    "mix": {"rows": 2, "interaction_layers": [-2, -1]},
    "virt": {"residual": False},
}


@pytest.fixture(scope="module", params=[name for name, row in ARCHITECTURES.items() if row.embeds])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, name = tmp_path_factory.mktemp(request.param), request.param
    base = write_base(directory / "base", 3, ["[MASK]", "[unused0]", "[unused1]"])
    recipe: dict[str, Any] = {"shared_encoder": True, "learning_rate": 3e-3, "steps": 40, "gradient_cache": True}
    config = settings(base, architecture=name, **recipe, **OPTIONS.get(name, {}))
    run(config, write_examples(directory / "examples.jsonl"), directory / "trained")
    return directory / "trained"


@cache
def loaded(checkpoint: Path, backend: str = "torch") -> VectorRanker:
    ranker = polyrank.load(checkpoint, backend=backend)
    assert isinstance(ranker, VectorRanker)
    return ranker


def candidates(texts: dict[str, str]) -> list[Candidate]:
    return [Candidate(id, text, {}) for id, text in texts.items()]


@cache
def ranked(checkpoint: Path, *texts: str) -> list[tuple[int, float]]:
    """What `rank` gives them, best first; torch computes it."""
    return loaded(checkpoint).rank(SAID, texts)


def test_training_leaves_a_checkpoint_that_ranks(checkpoint: Path) -> None:
    ranker, replies = loaded(checkpoint), ["w4", "w5", "w6", "w7"]
    found = ranker.rank(SAID, replies)
    assert found[0][0] == 1, "the reply follows from the context's first word"
    if ranker.late_rows is not None:
        assert ranker.config.training["settings"]["first_weight"] == 1.0
        [codes] = ranker.encode_contexts([ranker.tokenize_context(Conversation.of(SAID))[0]])
        by_first = ranker.encode_candidates(ranker.tokenize_candidates(replies)[0]) @ codes[0]
        differing = [abs(by_first[at] - score) for at, score in found]
        assert max(differing) > 0.01, "its scores are not those of its first stage"


def test_half_precision_stays_close(checkpoint: Path, tmp_path: Path) -> None:
    build_store(tmp_path, candidates(POOL), ranker=loaded(checkpoint), dtype="float16")
    found = rank(open_serving(tmp_path, load=polyrank.load), request_of(" ".join(SAID), top_k=99))
    wanted = {f"c{at}": score for at, score in loaded(checkpoint).rank(" ".join(SAID), TEXTS)}
    assert {str(place.id): place.score for place in found.places} == pytest.approx(wanted, abs=0.02)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_every_way_ranks_as_rank_does(checkpoint: Path, tmp_path: Path, redis_url: str, backend: str) -> None:
    store, replica = tmp_path / "store", tmp_path / "replica"
    model = loaded(checkpoint, backend)
    build(model, candidates(POOL), store, BuildOptions(dtype="float32", redis_url=redis_url))
    shutil.copytree(store, replica)
    from_redis = {"redis_url": redis_url, "vectors": "redis", "vector_cache_mb": 0}
    with served(store, backend) as here:
        assert_all_ways(here, checkpoint, POOL)
        rows = here.get("/index").json()["active"]["late"]
        assert rows == (None if model.late_rows is None else asdict(model.late_rows))
    for name in (MATRIX_FILE, LATE_FILE):
        for path in replica.glob(f"generations/*/{name}"):
            path.unlink()
    with served(replica, backend, **from_redis) as here:
        assert_all_ways(here, checkpoint, POOL)
        assert cached(here, "miss") == cached(here, "error") == 0
    with served(store, backend, **from_redis) as here:
        assert_all_ways(here, checkpoint, POOL)
        assert cached(here, "hit") > 0
        added = here.put("/index/candidates", json=[{"id": id, "text": text} for id, text in UPSERTED.items()])
        assert added.status_code == 200, added.text
        updated = {**POOL, **UPSERTED}
        assert_all_ways(here, checkpoint, updated)
        finish(here, here.post("/index/compact"))
        assert_all_ways(here, checkpoint, updated)
        finish(here, here.post("/index", json={"candidates": [{"id": i, "text": t} for i, t in OTHERS.items()]}))
        assert_all_ways(here, checkpoint, OTHERS)
        assert here.post("/index/rollback").status_code == 200
        assert_all_ways(here, checkpoint, updated)


@contextmanager
def served(store: Path, backend: str, **more: Any) -> Iterator[TestClient]:
    settings = Settings(store=store, threads=1, max_timeout_ms=60_000, backend=backend, **more)
    with TestClient(create_app(settings)) as client:
        assert client.get("/info").json()["model"]["backend"] == backend
        yield client


def assert_all_ways(here: TestClient, checkpoint: Path, texts: dict[str, str]) -> None:
    """Stored candidates, searched for and named, and texts sent along are ranked as `rank` ranks them."""
    ids = list(texts)
    wanted = {ids[at]: score for at, score in ranked(checkpoint, *texts.values())}
    sent = [{"id": id, "text": text} for id, text in texts.items()]
    for fields in ({}, {"exact": True}, {"candidates": sent}, {"candidates": [{"id": id} for id in texts]}):
        response = here.post("/rank", json={"context": SAID, "top_k": 99, **fields})
        assert response.status_code == 200, response.text
        found = response.json()
        assert (found["degraded"], found["exact"]) == ([], True)
        scores = {each["id"]: each["score"] for each in found["results"]}
        assert scores == pytest.approx(wanted, abs=1e-4)
        in_order = [wanted[each] for each in scores]
        assert all(one > other - 2e-4 for one, other in pairwise(in_order))


def cached(here: TestClient, result: str) -> float:
    """How many vectors Redis had or had not."""
    labels = {"tier": "redis", "result": result}
    registry = here.app.state.resources.metrics.registry
    return float(registry.get_sample_value("polyrank_cache_requests_total", labels) or 0)


def finish(here: TestClient, started: Any) -> None:
    """Wait until a job has ended well and what it made is served."""
    assert started.status_code == 202, started.text
    deadline = time.monotonic() + 120
    while (job := here.get(started.headers["location"]).json())["state"] not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert job["state"] == "succeeded", job
    assert here.get("/index").json()["active"]["id"] == job["generation"]
