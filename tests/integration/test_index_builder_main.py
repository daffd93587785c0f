"""`python -m index_builder` with a real model, in a process of its own."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fakes import HashEncoder, pool
from warm_python import WarmProcess, WarmPython

import polyrank
from polyrank.index_builder.building.job_records import FAILED, SUCCEEDED, JobRecord, JobRequest, JobStore
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.redis_client import connect
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.redis import HIT, RedisEmbeddings
from polyrank.model.inference.runners import AUTO, Runner
from polyrank.model.representations import Representations
from polyrank.service import settings
from polyrank.service.changes.jobs import _environment
from polyrank.service.settings import Settings

REPOSITORY = Path(__file__).parents[2]
Builder = Callable[..., WarmProcess]


def write_pool(path: Path, count: int, first: str = "w1") -> str:
    texts = (f"{first} w{i % 40} w{i % 37} w{i % 7}" for i in range(count))
    path.write_text("".join(f'{{"id": "c{i}", "text": "{text}"}}\n' for i, text in enumerate(texts)))
    return str(path)


NO_FIELDS = "fields: none besides id and text\n"
KEPT = "{} texts encoded, {} candidates keep the vectors that the last generation has\n"


@pytest.fixture
def builder(warm_python: WarmPython) -> Builder:
    """Starts a builder: of a store, for a job, with an environment."""
    return partial(warm_python.start, "-m", "polyrank.index_builder", "--store")


def run(builder: Builder, root: Path, request: JobRequest, **environment: str) -> tuple[JobRecord, int, str]:
    jobs = JobStore(root)
    job_id = jobs.create(request).id
    ended = end(builder(root, "--job", job_id, **environment))
    return jobs.get(job_id), *ended


def end(process: WarmProcess) -> tuple[int, str]:
    """Wait for its end; returns its exit status and what it said on standard error."""
    out, said = process.communicate()
    assert out == ""
    return process.wait(), said


def wait_for_stage(jobs: JobStore, job_id: str, later_than: str | None = None) -> None:
    """Wait until a job has a stage, or one that is not `later_than` any more."""
    while (record := jobs.get(job_id)).stage in (None, later_than):
        assert not record.is_finished, "the builder ended before it began"
        time.sleep(0.001)


@pytest.fixture
def root(builder: Builder, tmp_path: Path, checkpoints: Path, redis_tcp_url: str) -> Path:
    """A store that a job has built, with a copy in Redis."""
    request = JobRequest(pool=(write_pool(tmp_path / "p.jsonl", 100),), model=str(checkpoints / "poly"))
    record, status, said = run(builder, tmp_path / "store", request, POLYRANK_REDIS_URL=redis_tcp_url)
    assert (record.state, record.error, status, said) == (SUCCEEDED, None, 0, NO_FIELDS)
    assert GenerationStore(tmp_path / "store").current() == record.generation
    return tmp_path / "store"


def test_a_job_builds_with_the_model_named_and_then_with_the_active_generations(
    root: Path, tmp_path: Path, checkpoints: Path, redis_tcp_url: str
) -> None:
    first = GenerationStore(root).open_to_serve()[0][0]
    ranker = polyrank.load(first.model_directory)
    assert isinstance(ranker, polyrank.VectorRanker)
    assert ranker.fingerprint == first.manifest.model.fingerprint == polyrank.load(checkpoints / "poly").fingerprint
    tokens, _ = ranker.tokenize_candidates([each.text for each in first.candidates.rows(range(100))])
    assert abs(ranker.encode_candidates(tokens) - first.embeddings.matrix).max() < 2e-3
    copy = RedisEmbeddings(redis_tcp_url, first.id, ranker.dim, "float16", 5)
    assert (copy.get_many([f"c{i}" for i in range(100)]).status == HIT).all()
    copy.close()

    job_id = JobStore(root).create(JobRequest(pool=(write_pool(tmp_path / "q.jsonl", 30),), activate=False)).id
    command = [sys.executable, "-m", "polyrank.index_builder", "--store", str(root), "--job", job_id]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    record = JobStore(root).get(job_id)
    assert (record.state, done.returncode, done.stdout, done.stderr) == (
        SUCCEEDED, 0, "", NO_FIELDS + KEPT.format(0, 30),
    )  # fmt: skip
    assert record.notes[-1] == KEPT.format(0, 30).strip()
    store = GenerationStore(root)
    assert store.current() == first.id
    assert record.generation is not None
    manifest = store.verify(record.generation)
    assert (manifest.model, manifest.count) == (first.manifest.model, 30)


def test_builders_of_a_server_over_shards_take_the_lease_in_redis_and_copy_no_vectors(
    builder: Builder, tmp_path: Path, checkpoints: Path, redis_tcp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "why_unusable", lambda _: None)  # whether Ray is installed here or not
    root, store = tmp_path / "store", GenerationStore(tmp_path / "store")
    server = Settings(store=root, cluster="auto", redis_url=redis_tcp_url)
    told = {name: value for name, value in _environment(server, Runner(AUTO, AUTO)).items() if name not in os.environ}
    request = JobRequest(pool=(write_pool(tmp_path / "p.jsonl", 5),), model=str(checkpoints / "poly"))
    assert run(builder, root, request, **told)[1] == 0
    manifest = store.active()
    store.updates.of(manifest).append(Update(1, (), Representations.none(manifest.dim, manifest.late), ["c1"]))
    assert run(builder, root, JobRequest(pool=(), compacts=True), **told)[1] == 0
    assert (store.active().count, (root / "FENCE").read_text()) == (4, "2\n")
    with connect(redis_tcp_url, 5) as client:
        assert [key for key in client.scan_iter() if not key.endswith(b":fence")] == []


def test_a_job_keeps_the_type_of_the_stores_vectors(builder: Builder, tmp_path: Path, checkpoints: Path) -> None:
    store = tmp_path / "store"
    build(HashEncoder(dim=16), pool(5), store, BuildOptions(dtype="float32"))
    request = JobRequest(pool=(write_pool(tmp_path / "p.jsonl", 5),), model=str(checkpoints / "poly"))
    record, *_ = run(builder, store, request)
    assert GenerationStore(store).manifest(str(record.generation)).dtype == "float32"


def test_a_job_says_what_is_to_be_known_of_the_index(builder: Builder, tmp_path: Path) -> None:
    store = tmp_path / "store"
    generation = build(HashEncoder(dim=16), pool(600), store, BuildOptions(index="PQ1x1")).generation
    manifest = GenerationStore(store).manifest(generation)
    log = GenerationStore(store).updates.of(manifest)
    log.append(Update(1, (), Representations.none(manifest.dim, None), ["c1"]))
    record, status, said = run(builder, store, JobRequest(pool=(), compacts=True))
    assert (record.state, status, said.startswith("recall@10 of PQ1x1 is 0.")) == (SUCCEEDED, 0, True)


@pytest.mark.parametrize(("model_name", "pool", "reason"), [
    ("no/such/model", "p.jsonl", "no/such/model"),
    ("cross", "p.jsonl", "is a cross-encoder, which has no candidate embeddings"),
    ("poly", "missing.jsonl", "missing.jsonl: no such file"),
    (None, "p.jsonl", "has no active generation whose model could be used; name a model"),
])  # fmt: skip
def test_a_job_that_cannot_be_done_fails_in_one_line(
    builder: Builder, tmp_path: Path, checkpoints: Path, model_name: str | None, pool: str, reason: str
) -> None:
    write_pool(tmp_path / "p.jsonl", 3)
    if model_name in ("cross", "poly"):
        model_name = str(checkpoints / model_name)
    request = JobRequest(pool=(str(tmp_path / pool),), model=model_name)
    record, status, said = run(builder, tmp_path / "store", request)
    assert (record.state, status, said) == (FAILED, 1, "")
    assert reason in record.error
    assert str(checkpoints) not in record.error, "where models lie is nobody's business"
    assert "\n" not in record.error
    assert record.finished is not None


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
def test_kills_leave_the_old_or_the_new_generation(builder: Builder, root: Path, tmp_path: Path, kills: int) -> None:
    chance = random.Random(20261121)
    jobs, store = JobStore(root), GenerationStore(root)
    request = JobRequest(pool=(write_pool(tmp_path / "q.jsonl", 2000),))
    job_id = jobs.create(request).id
    process = builder(root, "--job", job_id)
    wait_for_stage(jobs, job_id)
    began = time.monotonic()
    assert end(process) == (0, NO_FIELDS + KEPT.format(1900, 100))
    duration = time.monotonic() - began
    stages: list[str | None] = []
    for number in range(kills):
        old = store.current()
        # Texts that the active generation lacks, so that there is something to encode; every other build meets what
        # the one before has left of them.
        request = JobRequest(pool=(write_pool(tmp_path / "q.jsonl", 2000, f"w{number // 2 + 2}"),))
        job_id = jobs.create(request).id
        process = builder(root, "--job", job_id)
        # A busy machine may take for the first stage as long as for all that was measured: some kills come after it.
        wait_for_stage(jobs, job_id, "read" if number % 5 == 4 else None)
        time.sleep(duration * (number + chance.random()) / kills)
        process.kill()  # it may just have ended
        status, _ = end(process)
        record = jobs.get(job_id)
        stages.append(record.stage)
        if status == -signal.SIGKILL:
            assert record.state == SUCCEEDED or (record.error or "").startswith("interrupted")
        [served], refused = store.open_to_serve()
        assert refused == []
        assert served.manifest.count in (100, 2000)
        assert served.id == old or record.stage in ("CURRENT", "done")
        for each in store.ids():
            store.verify(each)
        assert isinstance(polyrank.load(served.model_directory), polyrank.VectorRanker)
    # pytest shows it where the test fails.
    print(f"seed 20261121, killed at stages {stages}")  # noqa: T201
    assert len(set(stages)) > 1
    last, status, _ = run(builder, root, request)
    assert (last.state, status) == (SUCCEEDED, 0)
    assert store.verify(str(last.generation)).count == 2000
    assert not list((root / "generations").glob(".*"))
