"""Fixtures of the whole suite."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cases import cases
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from redis_process import RedisProcess
from suites import is_slow
from warm_python import WarmPython

from polyrank.model import threads
from polyrank.service.caching import redis_server

collect_ignore = ["clients", "browser", "typescript", "image"]  # in environments of their own: make test-clients, …

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: no test may ask the network for a model
# No process measures others first, unless it is told to, and scores are those of float32.
KEPT = {"POLYRANK_BACKEND": "torch", "POLYRANK_PRECISION": "float32", "POLYRANK_COMPILED_CACHE_MB": "0"}
os.environ.update(KEPT)
LIGHT = ("polyrank.service.cli", "polyrank.service.settings", "polyrank.index_builder.building.pipeline")
REDIS_SECONDS = {name: getattr(redis_server, name) for name in ("BUDGET_SECONDS", "SERVING_TIMEOUT_SECONDS")}
# On a busy machine an example may take long to draw and to try, and that is no failure.
settings.register_profile(
    "polyrank", deadline=None, max_examples=cases(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("polyrank")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what it puts into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or the processes that a test interrupts would not notice


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by where it stands."""
    for item in items:
        if is_slow(item.path.parent.name, {each.name for each in item.iter_markers()}):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Take what was imported out of the garbage collector's sight, as a server does when it is ready.

    Every switch of models collects garbage, which would go through all of torch's objects in each of the tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs the tests that are coroutines."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own POLYRANK_* variables must not reach the tests."""
    for name in [name for name in os.environ if name.startswith("POLYRANK_") and name not in KEPT]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="module")
def _threads_as_before() -> Iterator[None]:
    """A server in this process chooses a number of threads for all of it, by which near ties turn round elsewhere."""
    torch = sys.modules.get("torch")
    number = torch.get_num_threads() if torch else None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threads, "_chosen", threads._chosen)
        yield
    if torch and number:
        torch.set_num_threads(number)


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> Iterator[None]:
    """Nothing that a test writes must outlive the machine, and what the system has taken outlives every kill.

    A file that is not open is still an error. Processes of their own do wait.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, os.fstat)
        yield


@pytest.fixture(autouse=True, scope="session")
def _patience_with_redis() -> Iterator[None]:
    """A machine may stand still for longer than a request waits for Redis; see `usual_patience_with_redis`."""
    with pytest.MonkeyPatch.context() as patched:
        for name in REDIS_SECONDS:
            patched.setattr(redis_server, name, 5.0)
        yield


@pytest.fixture
def usual_patience_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a Redis that does not answer in time: servers wait as long as in production."""
    for name, seconds in REDIS_SECONDS.items():
        monkeypatch.setattr(redis_server, name, seconds)


@pytest.fixture(autouse=True, scope="session")
def _described_once() -> Iterator[None]:
    """Every app has the same routes, and describing them is nearly all that making an app costs."""
    module = sys.modules.get("polyrank.service.http.plumbing.openapi")  # importing it takes seconds
    if module is None:
        yield  # no test makes an app
        return
    with pytest.MonkeyPatch.context() as patched:
        documents: list[dict[str, Any]] = []
        describe = module.describe

        def described(app: FastAPI) -> dict[str, Any]:
            if not documents:
                documents.append(describe(app))
            return documents[0]

        patched.setattr(module, "describe", described)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_caches_of_the_developer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever runs for several tests keeps models apart from the developer's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "caches"))
        yield


@pytest.fixture(autouse=True)
def usual_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test, or a process of it, keeps models if it names no other place: nowhere yet, and never another's."""
    caches = tmp_path_factory.getbasetemp() / f"caches {uuid4()}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    return caches / "polyrank"


@pytest.fixture(scope="session")
def _unix_redis() -> Iterator[RedisProcess]:
    server = RedisProcess()
    yield server
    server.close()


@pytest.fixture(scope="session")
def _tcp_redis() -> Iterator[RedisProcess]:
    server = RedisProcess(tcp=True)
    yield server
    server.close()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """For processes whose start is not what is tested."""
    python = WarmPython()
    yield python
    python.close()


@pytest.fixture(scope="session")
def light_python() -> Iterator[WarmPython]:
    """For commands that must end without torch, which it has not imported."""
    python = WarmPython(*LIGHT)
    yield python
    python.close()


def _emptied(server: RedisProcess) -> str:
    with server.client() as client:
        client.flushall()
    return server.url


@pytest.fixture
def redis_url(_unix_redis: RedisProcess) -> str:
    """An empty Redis on a Unix socket."""
    return _emptied(_unix_redis)


@pytest.fixture
def redis_tcp_url(_tcp_redis: RedisProcess) -> str:
    """An empty Redis on a TCP port."""
    return _emptied(_tcp_redis)


@pytest.fixture
def redis_process() -> Iterator[RedisProcess]:
    """A Redis on a TCP port that the test may kill or stop."""
    server = RedisProcess(tcp=True)
    yield server
    server.close()


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small transformer that a module's tests share; its weights are drawn by the module's BASE_SEED, or by 3."""
    from tiny import write_base  # torch, which most tests do without

    return write_base(tmp_path_factory.mktemp("base") / "base", getattr(request.module, "BASE_SEED", 3))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of dialogues for a module's tests to train with."""
    from tiny_training import write_examples

    return write_examples(tmp_path_factory.mktemp("data") / "data.jsonl")
