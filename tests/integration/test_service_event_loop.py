"""Whatever a request holds, the event loop goes on: others are answered meanwhile. And nothing of it stays."""

import gc
import sys
import time
from collections.abc import Iterator

import pytest
from beats import BEAT_SECONDS, Beats
from benchmarks.load.worst import Call, worst
from fastapi.routing import iter_route_contexts
from served import Served, serve
from service_fakes import build_store, pool, words_app

MOST_MISSED = 1  # a busy machine is slower; what held the loop missed two to ninety
PIECE_BYTES = 64 * 1024
TRIES = 3
MOST_BYTES = 1 << 20
MOST_LEFT = 5000  # objects; what is cached takes fewer, and a list that was kept had 20,000
CALLS = [*worst()]
IDS = [f"{at}-{call.path[:24]}-{call.what}" for at, call in enumerate(CALLS)]


@pytest.fixture(scope="module")
def beaten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Beats]]:
    root = tmp_path_factory.mktemp("store")
    build_store(root, pool(200))
    app = words_app(root, reranker="cross", feedback="texts")
    beats = Beats(app)
    with serve(app) as served:
        served.rank(context="warm")
        gc.collect()
        gc.freeze()  # as a server does when it begins
        yield served, beats
    gc.unfreeze()


def ask(served: Served, call: Call) -> None:
    headers = {"Content-Type": "application/json", **call.headers}
    pieces: list[bytes] | bytes | None = call.body
    if call.body is not None and len(call.body) > PIECE_BYTES:
        # The client copies what is left of a body after each piece that it has sent, and holds up this process by that.
        headers["Content-Length"] = f"{len(call.body)}"
        pieces = [call.body[at : at + PIECE_BYTES] for at in range(0, len(call.body), PIECE_BYTES)]
    answer = served.client.request(call.method, call.path, content=pieces, headers=headers)
    assert answer.status_code != 500


def missed(served: Served, beats: Beats, call: Call) -> int:
    """How many beats the event loop misses while it answers a request."""
    time.sleep(2 * BEAT_SECONDS)
    beats.missed = 0
    ask(served, call)
    time.sleep(2 * BEAT_SECONDS)
    return beats.missed


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_no_request_holds_the_event_loop(beaten: tuple[Served, Beats], call: Call) -> None:
    counts: list[int] = []
    while len(counts) < TRIES and min(counts, default=MOST_MISSED + 1) > MOST_MISSED:
        counts.append(missed(*beaten, call))
    assert min(counts) <= MOST_MISSED, f"{counts} beats of {BEAT_SECONDS * 1000:g} ms"


def objects() -> int:
    """How many objects there are, without those that the garbage collector can free."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_nothing_stays_of_a_request(beaten: tuple[Served, Beats], call: Call) -> None:
    if (call.method, call.what) == ("PUT", "many candidates"):
        pytest.skip("candidates that were added stay until a compaction")
    counts: list[int] = []  # what goes into caches comes with the first one
    while len(counts) < TRIES and min(counts, default=MOST_LEFT + 1) > MOST_LEFT:
        before = objects()
        ask(beaten[0], call)
        counts.append(objects() - before)
    assert min(counts) <= MOST_LEFT, counts


def bytes_in_circles() -> int:
    """The bytes of objects that only the garbage collector frees, and of what they hold."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found = {id(each): each for each in [*gc.garbage, *gc.get_referents(*gc.garbage)]}
        return sum(map(sys.getsizeof, found.values()))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_nothing_large_of_a_request_waits_for_the_garbage_collector(beaten: tuple[Served, Beats], call: Call) -> None:
    gc.collect()
    gc.disable()
    try:
        ask(beaten[0], call)
        assert bytes_in_circles() <= MOST_BYTES
    finally:
        gc.enable()


@pytest.mark.parametrize("milliseconds", [1, 20, 50, 100])
def test_nothing_large_waits_of_a_request_that_ran_out_of_time(beaten: tuple[Served, Beats], milliseconds: int) -> None:
    texts = [f"{milliseconds} {number}" for number in range(5000)]
    gc.collect()
    gc.disable()
    try:
        answer = beaten[0].rank(context="hello", candidates=texts, timeout_ms=milliseconds)
        # 413: finding the tokens alone takes too long here, so no further try would get any further
        assert answer.status_code == 504 or answer.json()["type"].endswith("time-too-short")
        time.sleep(1)  # for steps that had begun
        assert bytes_in_circles() <= MOST_BYTES // 10
    finally:
        gc.enable()


def test_every_route_is_asked(beaten: tuple[Served, Beats]) -> None:
    asked = {(call.method, call.path.partition("?")[0]) for call in CALLS}
    for route in iter_route_contexts(beaten[0].app.routes):
        is_asked = {
            method: any(method == had and route.path_regex.match(path) for had, path in asked)
            for method in route.methods
        }
        assert all(is_asked.values()), (route.path_format, is_asked)
