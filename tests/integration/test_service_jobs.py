"""Rebuilds through the API, with real builder processes and real checkpoints."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from in_process import TestClient
from service_fakes import pool

import polyrank
from polyrank.index_builder.building.job_records import FAILED, RUNNING, JobRecord, JobRequest, JobStore
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.errors import JobConflict
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.inference.runners import Runner
from polyrank.service.api.generations import JobOut, JobsOut
from polyrank.service.app import create_app
from polyrank.service.changes import jobs as jobs_module
from polyrank.service.changes.jobs import Jobs
from polyrank.service.errors import OtherPoolBuilt
from polyrank.service.settings import Settings

PYTHON = sys.executable
HUGE = 100_000
FINAL = {"succeeded", "failed", "cancelled"}
# Stands in for the builder, to die or hang as no real one should.
STUB = "import sys, time\nprint('first'); print('the last line', file=sys.stderr)\n"


class Api:
    def __init__(self, client: TestClient, store: Path) -> None:
        self.client, self.store = client, store

    def start(self, key: str | None = None, **body: Any) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.client.post("/index", json=body, headers=headers)

    def job(self, response: Any) -> dict[str, Any]:
        assert response.status_code == 202, response.text
        return dict(response.json())

    def wait(
        self, job_id: str, until: Callable[[dict[str, Any]], bool] = lambda job: job["state"] in FINAL
    ) -> dict[str, Any]:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            response = self.client.get(f"/index/jobs/{job_id}")
            JobOut.model_validate_json(response.content)
            if until(response.json()):
                return dict(response.json())
            time.sleep(0.02)
        raise AssertionError(f"job {job_id}: {response.text}")

    def served(self) -> str:
        return str(self.client.get("/index").json()["active"]["id"])

    def count(self, state: str) -> float:
        registry = self.client.app.state.resources.metrics.registry
        return float(registry.get_sample_value("polyrank_build_jobs_total", {"state": state}))

    def last_success(self) -> float:
        registry = self.client.app.state.resources.metrics.registry
        return float(registry.get_sample_value("polyrank_build_last_success_timestamp_seconds"))

    def litter(self) -> list[str]:
        left = [path.name for path in (self.store / "generations").glob(".*")]
        return left + [path.name for path in (self.store / "jobs").glob("*.jsonl")]


pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.fixture(scope="module")
def roots(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The pool root and the model root."""
    pools = tmp_path_factory.mktemp("pools")
    (pools / "new.jsonl").write_bytes(
        b"".join(orjson.dumps({"id": f"n{n}", "text": f"w{n}"}) + b"\n" for n in range(40))
    )
    (pools / "bad.jsonl").write_bytes(b'{"id": 1}\n' * 10)
    (pools / "pool.txt").touch()
    (pools / "sheet.csv").write_text("ID;Text;Price\na;größe w1;5\nb;w2;7\n", encoding="latin-1")
    # Hours of work, should nobody stop it.
    with (pools / "huge.jsonl").open("wb") as file:
        for n in range(HUGE):
            file.write(b'{"text": "w1 w2 w3 w4 %d"}\n' % n)
    return pools, checkpoints


@pytest.fixture
def api(tmp_path: Path, roots: tuple[Path, Path]) -> Iterator[Api]:
    store = tmp_path / "store"
    build(polyrank.load(roots[1] / "poly"), pool(20, "old"), store)
    settings = Settings(store=store, pool_root=roots[0], model_root=roots[1], backend="torch", precision="float32")
    with TestClient(create_app(settings)) as client:
        yield Api(client, store)
    assert JobStore(store).active() is None, "the end of the service is the end of its builds"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts a script in the place of the builder."""

    def put(script: str) -> None:
        path = tmp_path / "stub.py"
        path.write_text(STUB + script)
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\nexec "{PYTHON}" "{path}" "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setattr(jobs_module.sys, "executable", str(wrapper))

    return put


@pytest.mark.quick
def test_a_rebuild_from_a_pool_is_served_before_it_is_reported(api: Api) -> None:
    before = api.served()
    response = api.start("k1", pool="new.jsonl")
    assert response.headers["location"] == f"/index/jobs/{response.json()['id']}"
    assert int(response.headers["retry-after"]) > 0
    job = api.wait(api.job(response)["id"])
    assert (job["state"], job["error"], job["activate"]) == ("succeeded", None, True)
    assert api.served() == job["generation"] != before
    answer = api.client.post("/rank", json={"context": "w1"}).json()
    assert answer["generation"] == job["generation"]
    assert all(result["id"].startswith("n") for result in answer["results"])
    assert api.count("succeeded") == 1
    assert api.last_success() == datetime.fromisoformat(job["finished"]).timestamp()
    JobsOut.model_validate_json(api.client.get("/index/jobs").content)
    assert [each["id"] for each in api.client.get("/index/jobs?limit=1").json()["jobs"]] == [job["id"]]
    assert api.litter() == []
    assert api.job(api.start("k1", pool="new.jsonl"))["id"] == job["id"], "the same key is the same job"
    other = api.start("k1", pool="bad.jsonl")
    assert other.status_code == 422
    assert job["id"] in other.json()["detail"]


def test_a_rebuild_says_what_fields_it_found_and_reads_the_encoding_that_is_asked_for(api: Api) -> None:
    failed = api.wait(api.job(api.start(pool="sheet.csv"))["id"])
    assert failed["state"] == "failed"
    assert "not valid UTF-8; if the whole file is so, name another encoding" in failed["error"]
    job = api.wait(api.job(api.start(pool="sheet.csv", encoding="latin-1"))["id"])
    assert (job["state"], job["notes"]) == ("succeeded", ["fields: Price (number, 2 rows)"])
    answer = api.client.post("/rank", json={"context": "w1", "filter": {"Price": {"gte": 6}}}).json()
    assert [result["text"] for result in answer["results"]] == ["w2"]
    refused = [
        api.start(pool="sheet.csv", encoding="latin-99"),
        api.start(candidates=[{"text": "a"}], encoding="utf-8"),
    ]
    assert [each.status_code for each in refused] == [422, 422]


def test_candidates_of_the_request_with_another_model_without_activation(api: Api) -> None:
    before = api.served()
    candidates = [{"text": "w1", "metadata": {"a": [1, None, {"b": 1.5}]}}, {"id": "x", "text": "w2"}]
    job = api.wait(api.job(api.start(candidates=candidates, model="other", activate=False))["id"])
    assert job["state"] == "succeeded", job
    assert api.served() == before
    [other] = api.client.get("/index").json()["others"]
    assert (other["id"], other["count"], other["model"]["architecture"]) == (job["generation"], 2, "bi")
    active = api.client.post("/index/activate", json={"generation": job["generation"]}).json()["active"]
    assert active["model"]["architecture"] == "bi"
    results = api.client.post("/rank", json={"context": "w1"}).json()["results"]
    assert {result["id"] for result in results} > {"x"}
    assert api.litter() == []


def test_an_empty_store_is_built_and_then_served(tmp_path: Path, roots: tuple[Path, Path]) -> None:
    settings = Settings(store=tmp_path / "new", model_root=roots[1], backend="torch", precision="float32")
    with TestClient(create_app(settings)) as client:
        api = Api(client, tmp_path / "new")
        refused = api.start(candidates=[{"text": "w1"}])
        assert refused.status_code == 422
        assert "model" in refused.json()["detail"]
        job = api.wait(api.job(api.start(candidates=[{"text": "w1"}], model="poly"))["id"])
        assert job["state"] == "succeeded", job
        assert client.get("/readyz").json()["generation"] == job["generation"]
        assert client.post("/rank", json={"context": "w1"}).json()["results"][0]["text"] == "w1"


def test_old_generations_are_collected(api: Api, roots: tuple[Path, Path]) -> None:
    first = api.served()
    second = build(polyrank.load(roots[1] / "poly"), pool(20), api.store).generation
    third = api.wait(api.job(api.start(candidates=[{"text": "w1"}]))["id"])["generation"]
    assert sorted(path.name for path in (api.store / "generations").iterdir()) == [second, third] != [first, second]
    assert api.client.post("/index/rollback").json()["active"]["id"] == second


def test_a_second_build_is_refused_with_a_link_and_the_first_can_be_cancelled(api: Api) -> None:
    before = api.served()
    first = api.job(api.start("k1", pool="huge.jsonl"))
    running = api.wait(first["id"], lambda job: job["stage"] == "encode" and job["progress"]["total"] == HUGE)
    assert running["state"] == "running"
    assert api.client.get("/index").json()["job"]["id"] == first["id"]
    second = api.start(candidates=[{"text": "w1"}])
    assert second.status_code == 409
    assert second.json()["job"] == first["links"]["self"]
    assert api.job(api.start("k1", pool="huge.jsonl"))["id"] == first["id"], "a repeat is no second build"
    assert api.client.post("/rank", json={"context": "w1"}).status_code == 200
    for _ in range(2):
        assert api.client.post(first["links"]["cancel"]).status_code == 202
    ended = api.wait(first["id"])
    assert (ended["state"], ended["generation"]) == ("cancelled", None)
    assert api.client.post(first["links"]["cancel"]).json()["state"] == "cancelled"
    assert (api.served(), api.litter(), api.count("cancelled")) == (before, [], 1)


def test_a_race_for_the_one_build_leaves_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise JobConflict("20261121T013000123456-1a2b3c4d")

    monkeypatch.setattr(JobStore, "create", lost)
    assert api.start(candidates=[{"text": "w1"}]).status_code == 409
    assert api.litter() == []


def test_a_bad_pool_fails_and_nothing_changes(api: Api) -> None:
    before = api.served()
    job = api.wait(api.job(api.start(pool="bad.jsonl"))["id"])
    assert job["state"] == "failed"
    assert "rows are bad" in job["error"]
    assert (api.served(), api.litter(), api.count("failed")) == (before, [], 1)


@pytest.mark.parametrize(("body", "says"), [
    ({"pool": "../store/CURRENT"}, "pool root"),
    ({"pool": "/etc/passwd"}, "pool root"),
    ({"pool": "missing.jsonl"}, "pool root"),
    ({"pool": "a\0b"}, "pool root"),
    ({"pool": "pool.txt"}, "unknown kind"),
    ({"pool": "new.jsonl", "model": "../store"}, "model root"),
    ({"pool": "new.jsonl", "model": "nothing"}, "model root"),
])  # fmt: skip
def test_paths_stay_below_their_roots(api: Api, body: dict[str, Any], says: str) -> None:
    response = api.start(**body)
    assert response.status_code == 422
    assert says in response.json()["detail"]
    assert api.client.get("/index/jobs").json()["jobs"] == []


@pytest.mark.parametrize("path", [None, "."])
def test_the_builder_imports_nothing_that_lies_about(api: Api, tmp_path: Path, monkeypatch, path: str | None) -> None:
    for name in ("index_builder", "model", "orjson"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    if path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        monkeypatch.chdir(tmp_path)
    else:  # as run from a clone that is not installed
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(jobs_module.sys, "executable", PYTHON)
    job = api.wait(api.job(api.start(candidates=[{"text": "w1"}]))["id"])
    assert (job["state"], job["error"]) == ("succeeded", None)


def test_the_model_that_serves_is_built_with_by_the_back_end_that_was_chosen_for_it(
    api: Api, stub: Callable[[str], None]
) -> None:
    names = "*(os.environ[f'POLYRANK_{name}'] for name in ('BACKEND', 'PRECISION'))"
    stub(f"import os; print('by', {names}, file=sys.stderr); sys.exit(3)")
    ranker = api.client.app.state.resources.live.current.ranker
    for precision in ("bfloat16", "int8"):
        ranker.backend, ranker.precision = "openvino", precision
        same = api.wait(api.job(api.start(candidates=[{"text": "w1"}]))["id"])
        assert same["error"].endswith(f": by openvino {precision}")
    other = api.wait(api.job(api.start(candidates=[{"text": "w1"}], model="poly"))["id"])
    assert other["error"].endswith(": by torch float32")


def test_a_builder_that_dies_leaves_its_last_line_and_the_log_has_all(
    api: Api, stub: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    stub("print('and another', file=sys.stderr); sys.exit(3)")
    with caplog.at_level(logging.INFO):
        job = api.wait(api.job(api.start(candidates=[{"text": "w1"}]))["id"])
    assert (job["state"], job["error"]) == ("failed", "the builder ended with status 3: and another")
    [told] = [record for record in caplog.records if record.message == "rebuild ended"]
    assert told.fields["said"] == "the last line; and another"
    assert api.litter() == []


async def _nothing() -> None:
    """Nobody serves it."""


def test_of_two_pools_asked_for_at_once_one_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes of one server: they share nothing but the stores, of which one was never built."""
    roots = {"shop": tmp_path / "shop", "support": tmp_path / "support"}
    create = JobStore.create

    def slowly(*given: Any) -> JobRecord:
        time.sleep(0.3)  # both have looked for others by now
        return create(*given)

    monkeypatch.setattr(JobStore, "create", slowly)

    def ask(pool: str) -> str:
        others = {name: JobStore(root) for name, root in roots.items() if name != pool}
        store = GenerationStore(roots[pool])
        runner = Runner("torch", "float32")
        jobs = Jobs(Settings(store=roots), store, lambda _: runner, _nothing, lambda _: None, others)
        try:
            jobs._create(JobRequest(pool=(), compacts=True))
            return "built"
        except OtherPoolBuilt as refused:
            return f"refused for {refused.base}"

    with ThreadPoolExecutor(2) as threads:
        told = sorted(threads.map(ask, roots))
    assert told in (["built", "refused for /pools/shop"], ["built", "refused for /pools/support"])


def test_what_was_read_before_the_end_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reading of a dead builder's record and the look at what runs, its end may have been written down."""
    jobs = Jobs(
        Settings(store=tmp_path), GenerationStore(tmp_path), lambda _: Runner("torch", "float32"),
        on_success=_nothing, on_end=lambda _: None,
    )  # fmt: skip
    store = JobStore(tmp_path)
    record = store.create(JobRequest(pool=("a.jsonl",)))

    def read_then_settled(_: JobStore, job_id: str) -> JobRecord:
        jobs._builders.clear()
        return record.finish(FAILED, error="interrupted: the process that ran it is gone")

    monkeypatch.setattr(JobStore, "get", read_then_settled)
    monkeypatch.setattr(jobs, "_builders", {record.id: object()})
    assert asyncio.run(jobs.get(record.id)).state == RUNNING
    assert asyncio.run(jobs.get(record.id)).state == FAILED


def test_a_builder_that_is_killed_is_failed(api: Api) -> None:
    job = api.job(api.start(pool="huge.jsonl"))
    api.wait(job["id"], lambda job: job["stage"] == "encode")
    pid = JobStore(api.store).get(job["id"]).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ended = api.wait(job["id"])
    assert ended["state"] == "failed"
    assert "status -9" in ended["error"]
    assert api.wait(api.job(api.start(candidates=[{"text": "w1"}]))["id"])["state"] == "succeeded"
    assert api.litter() == [], "what the killed one has left is gone"


def test_a_builder_that_ignores_sigterm_is_killed(api: Api, stub: Callable[[str], None], monkeypatch) -> None:
    monkeypatch.setattr(jobs_module, "GRACE_SECONDS", 0.2)
    ready = api.store / "ready"
    stub(f"import signal\nsignal.signal(15, signal.SIG_IGN)\nopen({str(ready)!r}, 'w')\ntime.sleep(60)")
    job = api.job(api.start(candidates=[{"text": "w1"}]))
    while not ready.exists():
        time.sleep(0.01)
    api.client.post(job["links"]["cancel"])
    assert api.wait(job["id"])["state"] == "cancelled"


def test_a_builder_that_had_to_be_killed_when_it_was_cancelled_leaves_nothing(api: Api, monkeypatch) -> None:
    monkeypatch.setattr(jobs_module, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(jobs_module.sys, "executable", PYTHON)  # whose own group is killed
    job = api.job(api.start(pool="huge.jsonl"))
    api.wait(job["id"], lambda job: job["stage"] == "encode")
    pid = JobStore(api.store).get(job["id"]).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # on a busy machine it would not come to hear of its end in time either
    assert list((api.store / "generations").glob(".tmp-*"))
    older = GenerationStore(api.store).begin("20260101T000000000000-00000000")
    api.client.post(job["links"]["cancel"])
    assert api.wait(job["id"])["state"] == "cancelled"
    assert api.litter() == [older.name], "what somebody else has left is not this job's"


def test_a_cancel_while_the_builder_publishes_comes_too_late(
    api: Api, stub: Callable[[str], None], monkeypatch
) -> None:
    monkeypatch.setattr(jobs_module, "GRACE_SECONDS", 0.1)
    stub(
        "import signal\nfrom pathlib import Path\nfrom polyrank.index_builder.building.job_records import JobStore\n"
        "jobs = JobStore(Path(sys.argv[-3]))\n"
        "with jobs.running(sys.argv[-1]) as record:\n"
        "    signal.signal(15, signal.SIG_IGN)\n"
        "    jobs.update(record.evolve(stage='rename'))\n"
        "    time.sleep(0.5)\n"
        "    jobs.update(record.finish('succeeded'))\n"
    )
    job = api.job(api.start(candidates=[{"text": "w1"}]))
    api.wait(job["id"], lambda job: job["stage"] == "rename")
    assert api.client.post(job["links"]["cancel"]).status_code == 202
    assert api.wait(job["id"])["state"] == "succeeded"


def test_a_builder_that_cannot_be_started_is_failed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module.sys, "executable", "/no/such/python")
    assert api.wait(api.job(api.start(candidates=[{"text": "w1"}]))["id"])["state"] == "failed"
    assert api.count("failed") == 1


def test_a_build_is_cancelled_when_the_service_ends(tmp_path: Path, roots: tuple[Path, Path]) -> None:
    settings = Settings(store=tmp_path, pool_root=roots[0], model_root=roots[1], backend="torch", precision="float32")
    with TestClient(create_app(settings)) as client:
        api = Api(client, tmp_path)
        job = api.job(api.start(pool="huge.jsonl", model="poly"))
        api.wait(job["id"], lambda job: job["stage"] == "read")
    assert JobStore(tmp_path).get(job["id"]).state == "cancelled"
    assert api.litter() == []


def test_a_job_of_another_server_is_seen_and_cancelled(api: Api, roots: tuple[Path, Path]) -> None:
    import subprocess

    record = JobStore(api.store).create(JobRequest(pool=(str(roots[0] / "huge.jsonl"),)))
    command = [sys.executable, "-m", "polyrank.index_builder", "--store", str(api.store), "--job", record.id]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    api.wait(record.id, lambda job: job["state"] == "running")
    assert api.start(candidates=[{"text": "w1"}]).status_code == 409
    assert api.client.post(f"/index/jobs/{record.id}/cancel").status_code == 202
    assert api.wait(record.id)["state"] == "cancelled"
    assert process.wait(30) == 1
    assert api.litter() == []


def test_a_job_that_waits_for_a_process_is_cancelled(api: Api) -> None:
    record = JobStore(api.store).create(JobRequest(pool=()))
    response = api.client.post(f"/index/jobs/{record.id}/cancel")
    assert (response.status_code, response.json()["state"]) == (202, "cancelled")
    assert api.client.get("/index").json()["job"] is None
