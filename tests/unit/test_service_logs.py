"""The writer of the log: order, gaps, and that nobody waits for a reader."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType

import pytest

from polyrank.model.progress import STILL
from polyrank.service.observe import logs
from polyrank.service.observe.logs import JsonFormat, LineWriter, TextFormat

WIDE = "x" * 1000
MUCH = 1 << 20


def test_lines_name_the_pool_that_a_thread_or_a_task_works_for() -> None:
    record = logging.makeLogRecord({"name": "n", "msg": "m", "fields": {"a": 1}})

    def line() -> tuple[str, object]:
        return TextFormat().format(record), json.loads(JsonFormat().format(record)).get("pool")

    assert line()[0].endswith(" m a=1")
    assert line()[1] is None
    with ThreadPoolExecutor(1, "one", logs.POOL.set, ("shop",)) as thread:
        text, pool = thread.submit(line).result()
    assert text.endswith(" m pool=shop a=1")
    assert pool == "shop"
    assert line()[1] is None


class Pipe:
    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()

    def rest(self) -> list[str]:
        """What is left to read once nobody writes any more."""
        os.close(self.writes)
        return self.all()

    def all(self) -> list[str]:
        with open(self.reads, encoding="utf-8") as file:
            return file.read().splitlines()


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@contextmanager
def logger(writer: LineWriter) -> Iterator[logging.Logger]:
    made = logging.Logger("one")
    made.addHandler(writer)
    yield made
    writer.close()


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "log"]


def test_lines_come_in_order_and_none_is_lost_at_the_end(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writes, MUCH)
    with logger(writer) as log:
        for number in range(200):
            log.info("line %d \ud800", number)
        writer.flush()
    assert pipe.rest() == [f"line {number} \\ud800" for number in range(200)]


def test_nobody_waits_for_a_reader_and_what_is_dropped_is_counted_and_told(pipe: Pipe) -> None:
    writer, counted, sent = LineWriter(pipe.writes, waiting_bytes=300_000), [], 500
    writer.setFormatter(JsonFormat())
    with logger(writer) as log:
        for _ in range(sent):
            log.info(WIDE)
        writer.count_dropped_by(counted.append)
        assert counted, "those that were dropped before, at once"
        while len(counted) < 2:  # the writer may only now fill the pipe, which makes room
            log.info(WIDE)
            sent += 1
        dropped, one = counted
        assert one == 1
        with ThreadPoolExecutor() as beside:
            lines = beside.submit(pipe.all)
            writer.flush()  # somebody reads by now
            log.info("the last one")
            writer.flush()
            os.close(pipe.writes)
    *others, last = map(json.loads, lines.result())
    written = [line for line in others if line["message"] == WIDE]
    gaps = [line for line in others if line["message"] != WIDE]  # more than one, if the writer made room in between
    assert len(written) + dropped + one == sent
    assert {(gap["level"], gap["message"]) for gap in gaps} == {("warning", "log lines were dropped")}
    assert sum(gap["lines"] for gap in gaps) == dropped + 1
    assert last["message"] == "the last one"


def test_the_end_waits_for_a_reader_but_not_for_long(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.01)
    before = set(writers())
    writer = LineWriter(pipe.writes, MUCH)
    [thread] = set(writers()) - before
    with logger(writer) as log:
        for _ in range(100):
            log.info(WIDE)
        writer.flush()  # comes back, though nothing is read
    os.close(pipe.reads)
    thread.join(10)  # it would write what waits into the pipe of another test that gets the same number
    assert not thread.is_alive()
    os.close(pipe.writes)


def test_a_log_that_cannot_be_written_is_counted() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer, counted = LineWriter(full.fileno(), MUCH), []
        writer.count_dropped_by(counted.append)
        with logger(writer) as log:
            for _ in range(3):
                log.info("one")
                writer.flush()
    assert counted == [1, 1, 1]


def test_a_writer_that_is_closed_ends(pipe: Pipe) -> None:
    before = set(writers())
    writer = LineWriter(pipe.writes, MUCH)
    [thread] = set(writers()) - before
    with logger(writer) as log:
        log.info("one")
    thread.join(10)
    assert not thread.is_alive()
    assert pipe.rest() == ["one"]


@pytest.mark.parametrize("form", [TextFormat, JsonFormat])
def test_a_line_that_cannot_be_formatted_fails_nobody_and_is_told(pipe: Pipe, form: type[logging.Formatter]) -> None:
    writer = LineWriter(pipe.writes, MUCH)
    writer.setFormatter(form())
    with logger(writer) as log:
        log.info("%d rows", "no number")
        log.info("the next one")
        writer.flush()
    told, after = pipe.rest()
    for part in ("a log line could not be formatted", "test_service_logs:", "TypeError"):
        assert part in told
    assert "the next one" in after


def test_what_json_cannot_say_is_a_text(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writes, MUCH)
    writer.setFormatter(JsonFormat())
    with logger(writer) as log:
        log.info("of \ud800", extra={"fields": {"file": "a\udcff", "large": 2**64, "rows": 7}})
        writer.flush()
    [line] = map(json.loads, pipe.rest())
    assert (line["message"], line["file"]) == ("of \\ud800", "a\\udcff")
    assert (line["large"], line["rows"], line["level"]) == (str(2**64), 7, "info")


def test_what_others_say_is_no_line_of_its_own_and_nothing_that_a_terminal_obeys() -> None:
    record = logging.makeLogRecord({"msg": "failed: \x1b[2J", "fields": {"why": "a\n2026-01-01 INFO all is well\x07"}})
    assert TextFormat().format(record).endswith("failed: \\x1b[2J why=a 2026-01-01 INFO all is well\\x07")


@pytest.mark.parametrize(("level", "printed"), [("error", []), ("info", ["a warning"])])
def test_warnings_of_libraries_keep_to_the_level(level: str, printed: list[str]) -> None:
    script = (
        "import logging; from polyrank.service.observe import logs; "
        f"logs.configure({level!r}, 'text'); logging.getLogger('uvicorn.error').warning('a warning'); "
        "logging.getLogger('uvicorn.error').info('no more'); logging.shutdown()"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [line.partition("uvicorn.error ")[2] for line in run.stderr.splitlines()] == printed


def test_long_work_is_told_while_another_thread_imports_the_bars(monkeypatch, capsys) -> None:
    waits = logs._Waits()
    record = logging.LogRecord("progress", logging.INFO, "", 0, f"{STILL}loading", (), None)
    record.fields = {"seconds": 9.0}
    for half_imported in (None, ModuleType("tqdm")):
        monkeypatch.setitem(sys.modules, "tqdm", half_imported)
        waits.emit(record)
        assert capsys.readouterr().err == f"{STILL}loading: 9 s\n"
