import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from index_builder.errors import JobConflict
from service.compacting import Compacting


@dataclass
class Jobs:
    """Counts what is started."""

    conflict: bool = False
    started: int = 0

    async def compact(self) -> Any:
        if self.conflict:
            raise JobConflict("another")
        self.started += 1
        return SimpleNamespace(id="job")


@dataclass
class Live:
    """Serves a generation with so many changes."""

    current: Any = None
    jobs: Jobs = field(default_factory=Jobs)

    def serve(self, generation: str, changed: int, count: int = 10) -> None:
        snapshot = SimpleNamespace(changed=changed, count=count)
        self.current = SimpleNamespace(generation=SimpleNamespace(id=generation), snapshot=snapshot)


@pytest.fixture
def live() -> Live:
    return Live()


def looks(compacting: Compacting, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(compacting.look())


def test_it_begins_when_much_has_changed_and_once(live: Live) -> None:
    compacting: Any = Compacting(live, live.jobs, 100)  # type: ignore[arg-type]  # they answer to the same names
    looks(compacting)
    live.serve("a", 99)
    looks(compacting)
    assert live.jobs.started == 0
    live.serve("a", 100)
    looks(compacting, 3)
    assert live.jobs.started == 1


def test_one_that_failed_is_tried_again_when_twice_as_much_has_changed(live: Live) -> None:
    compacting: Any = Compacting(live, live.jobs, 100)  # type: ignore[arg-type]  # as above
    for changed, started in ((150, 1), (299, 1), (300, 2)):
        live.serve("a", changed)
        looks(compacting, 2)
        assert live.jobs.started == started
    live.serve("b", 100)
    looks(compacting)
    assert live.jobs.started == 3


def test_it_waits_for_another_job(live: Live) -> None:
    compacting: Any = Compacting(live, live.jobs, 100)  # type: ignore[arg-type]  # as above
    live.serve("a", 100)
    live.jobs.conflict = True
    looks(compacting, 3)
    live.jobs.conflict = False
    looks(compacting)
    assert live.jobs.started == 1


def test_never_where_it_is_switched_off_or_nothing_is_left(live: Live) -> None:
    live.serve("a", 1000)
    looks(Compacting(live, live.jobs, 0))  # type: ignore[arg-type]  # as above
    live.serve("a", 1000, count=0)
    looks(Compacting(live, live.jobs, 100))  # type: ignore[arg-type]  # as above
    assert live.jobs.started == 0
