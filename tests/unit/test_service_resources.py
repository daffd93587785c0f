"""Old generations go, but never one that may be needed."""

from pathlib import Path

import pytest
from service_fakes import build_store, count_nothing, load, pool

from index_builder.generations import GenerationStore
from service.live import Live
from service.metrics import Metrics
from service.resources import collect
from service.serving import Opener
from service.settings import Settings


class Fixture:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings(store=root)
        self.store = GenerationStore(root)
        self.live = Live(self.store, Opener(count_nothing, None, load), Metrics())

    def build(self) -> str:
        return build_store(self.root, pool(5))

    def collect(self) -> list[str]:
        collect(self.settings, self.store, self.live)
        return self.store.ids()


@pytest.fixture
def store(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_as_many_as_set_are_kept(store: Fixture) -> None:
    _, second, third = store.build(), store.build(), store.build()
    store.live.start()
    assert store.collect() == [second, third]


def test_none_goes_while_another_than_the_active_one_is_served(store: Fixture) -> None:
    first = store.build()
    store.live.start()
    rest = [store.build() for _ in range(3)]
    assert store.collect() == [first, *rest]
    store.live.follow()
    assert store.collect() == rest[1:]


def test_none_goes_while_nothing_is_served(store: Fixture) -> None:
    built = [store.build() for _ in range(3)]
    assert store.collect() == built


def test_a_redis_that_is_down_is_no_failure(store: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    built = [store.build() for _ in range(3)]
    store.settings = Settings(store=store.root, redis_url="redis://127.0.0.1:1/0")  # type: ignore[arg-type]
    store.live.start()
    assert store.collect() == built
    assert "could not be removed" in caplog.text
