"""The arithmetic of the load generator; a server that stalls pays for every request due meanwhile."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path

import pytest
from benchmarks.load import generator
from benchmarks.load.figures import Answer, percentile_ms, poisson, seconds_until_normal, summary
from benchmarks.load.generator import Phase, Plan, read_plan
from benchmarks.load.mix import SAMPLE, Mix


def answer(scheduled: float = 0.0, seconds: float = 0.01, status: int = 200, retry_after: int | None = None) -> Answer:
    return Answer(0, scheduled, 0.0, seconds, status, retry_after)


def test_arrivals_are_those_of_independent_callers() -> None:
    at = poisson(rate=200.0, seconds=100.0, seed=3)
    assert at == sorted(at)
    assert 0 < at[0] <= at[-1] < 100
    assert len(at) == pytest.approx(20_000, rel=0.03)
    gaps = [after - before for before, after in pairwise(at)]
    assert sum(gap > 1 / 200 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.01), "1/e"
    assert at == poisson(200.0, 100.0, seed=3) != poisson(200.0, 100.0, seed=4)


def test_percentiles_are_values_that_occurred() -> None:
    seconds = [n / 1000 for n in range(1, 101)]
    assert [percentile_ms(seconds[::-1], each) for each in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile_ms([0.007], 99) == 7.0
    assert percentile_ms([], 99) is None


def test_what_comes_late_is_no_good_answer() -> None:
    answers = [answer(), answer(seconds=2.0), answer(status=503, seconds=0.02, retry_after=1), answer(status=503)]
    found = summary(answers, seconds=2.0, deadline=1.0)
    assert (found["sent_per_s"], found["goodput_per_s"]) == (2.0, 0.5)
    assert (found["refused"], found["refused_with_retry_after"], found["refused_p99_ms"]) == (2, 1, 20.0)
    assert found["statuses"] == {"200": 2, "503": 2}


def test_normal_is_when_all_that_follows_is() -> None:
    slow = [answer(0.1, 0.5), answer(0.6, status=503), answer(1.1, 0.4)]
    well = [answer(1.3 + n / 10) for n in range(50)]
    assert seconds_until_normal(slow + well, normal_p99=0.02) == 1.25
    assert seconds_until_normal(well, normal_p99=0.02) == 0.0
    assert seconds_until_normal(slow, normal_p99=0.02) is None
    assert seconds_until_normal([*slow, *well, answer(7.0, status=504)], normal_p99=0.02) is None


def test_no_two_requests_are_alike() -> None:
    mix = Mix(SAMPLE / "conversations.jsonl", SAMPLE / "pool.jsonl")
    requests = [*islice(mix.realistic(0.5, 0.1, timeout_ms=9), 300), *islice(mix.short(), 100)]
    assert len({json.dumps(each["context"]) for each in requests}) == 400
    turns = {len(each["context"]) for each in requests[:300]}
    assert turns == {1, 2, 3, 4, 5, 6}
    sent = [len(each["candidates"]) for each in requests if "candidates" in each]
    assert 100 < len(sent) < 200
    assert 20 <= min(sent) <= max(sent) <= 100


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = Plan("http://127.0.0.1:1", "/rank", "bodies", None, (Phase(1.0, rate=5.0), Phase(2.0, concurrency=3)))
    assert read_plan(json.dumps(asdict(plan))) == plan


Reply = Callable[[int], Awaitable[bytes]]


def load(tmp_path: Path, reply: Reply, *phases: Phase) -> list[Answer]:
    """Run the phases against a minimal server that gives these replies; returns the answers."""
    (tmp_path / "bodies").write_bytes(b'{"a": 1}\n{"a": 22}\n')
    got: list[bytes] = []
    serving: list[asyncio.Task[object] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                got.append(await reader.readexactly(length))
                writer.write(await reply(len(got)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def both() -> list[Answer]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        plan = Plan(f"http://127.0.0.1:{port}", "/rank", str(tmp_path / "bodies"), None, phases, timings=True)
        async with server:
            answers = await generator.run(plan)
            assert len(got) == len(answers)
            assert set(got) <= {b'{"a": 1}', b'{"a": 22}'}
            await asyncio.gather(*filter(None, serving))
        return answers

    return asyncio.run(both())


BODY = b'{"timings_ms": {"total": 1.5}}'
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"


def test_a_server_that_stalls_pays_for_all_who_would_have_come(tmp_path: Path) -> None:
    stalled_until: list[float] = []

    async def reply(_number: int) -> bytes:
        if not stalled_until:
            stalled_until.append(asyncio.get_running_loop().time() + 0.4)
        await asyncio.sleep(max(0.0, stalled_until[0] - asyncio.get_running_loop().time()))
        return GOOD

    answers = load(tmp_path, reply, Phase(0.8, rate=100.0, seed=1))
    waited = [each for each in answers if each.seconds > 0.1]
    assert len(answers) == len(poisson(100.0, 0.8, 1))
    assert len(waited) > 20, "all who came in those 0.3 s, not the first alone"
    assert {each.status for each in answers} == {200}
    assert answers[0].timings_ms == {"total": 1.5}


def test_refusals_are_told_with_when_to_come_back(tmp_path: Path) -> None:
    async def reply(number: int) -> bytes:
        return BUSY if number % 2 else GOOD

    answers = load(tmp_path, reply, Phase(0.2, rate=100.0, seed=1), Phase(0.1, concurrency=1))
    assert {(each.status, each.retry_after) for each in answers if each.phase == 0} == {(200, None), (503, 1)}
    assert 1 <= sum(each.status == 503 for each in answers if each.phase == 1) <= 2, "the one caller waits as told"


def test_a_server_that_hangs_up_is_no_answer(tmp_path: Path) -> None:
    async def reply(_number: int) -> bytes:
        raise asyncio.IncompleteReadError(b"", None)

    answers = load(tmp_path, reply, Phase(0.1, rate=50.0, seed=1))
    assert {each.status for each in answers} == {0}
