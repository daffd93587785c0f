"""A newcomer's day: files of other tools become a served model, and no command is silent for long.

    python -m benchmarks.newcomer_day [FORMAT[=FILE] ...] [--steps 10] [--log LOG]

For each format of `polyrank convert`: convert, train some steps and evaluate where there are dialogues, build, rank
from the store, serve, POST /rank, stop. Each is a process of the command line, and the cache of compiled models is
empty at first. Without FILE the bundled conversations are written as that tool writes them. The table has the seconds
of each format, the longest time without a line, of which command and after which line, and what failed. LOG gets every
line with the second in which it came.

Exit status 1: a command failed, a format took over ten minutes, or a command was silent for over five seconds.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from benchmarks.load.drive import table

from polyrank.model.inference.disk_cache import DIRECTORY

MOST_SECONDS, MOST_SILENT = 600.0, 5.0
COLUMNS = ("format", "seconds", "silent_s", "command", "after", "failed")
READY = "polyrank is ready on "
ASKED = "my parcel has not come"
_SOURCE = Path(__file__).resolve().parents[1]
_SAMPLE = _SOURCE / "examples" / "support" / "conversations.jsonl"
_BASE = _SOURCE / "checkpoints" / "chat-poly"
_BATCH = 8  # a step is to be short

Talk = dict[str, Any]  # as in the bundled sample: context, response, candidates, some with a persona


class Mark(NamedTuple):
    """Something that was seen of a command, and when: a line, or its start or end."""

    at: float
    what: str


class Silence(NamedTuple):
    """How long nothing came of a command, and what had come before."""

    seconds: float
    command: str
    after: str


def longest(command: str, marks: Sequence[Mark]) -> Silence:
    """Return the longest time between two marks that follow each other."""
    gaps = (Silence(then.at - mark.at, command, mark.what) for mark, then in pairwise(marks))
    return max(gaps, default=Silence(0.0, command, "its start"))


class Watched:
    """A running command, and when each of its lines came.

    Attributes:
        marks: what was seen of it, in order.
    """

    def __init__(self, command: Sequence[object], folder: Path, environment: dict[str, str]) -> None:
        self.marks = [Mark(time.monotonic(), "its start")]
        self._process = subprocess.Popen(
            [str(each) for each in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, **environment},
        )
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "opened as a pipe"
        for line in self._process.stdout:
            with self._heard:
                self.marks.append(Mark(time.monotonic(), line.rstrip()))
                self._heard.notify_all()
        self._process.stdout.close()
        with self._heard:
            self.marks.append(Mark(time.monotonic(), "its end"))
            self._heard.notify_all()

    def until(self, beginning: str) -> Mark | None:
        """Wait for a line that begins so, for at most ten minutes; None: it did not come."""

        def come() -> list[Mark]:
            return [mark for mark in self.marks if mark.what.startswith((beginning, "its end"))]

        with self._heard:
            self._heard.wait_for(come, MOST_SECONDS)
            return next((mark for mark in come() if mark.what.startswith(beginning)), None)

    def ended(self) -> int:
        """Wait for its end, for at most ten minutes; returns the exit status."""
        try:
            self._process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join()
        return self._process.wait()

    def stop(self) -> None:
        """Ask it to end."""
        self._process.send_signal(signal.SIGTERM)


class Day:
    """The commands of one format, in a folder of their own, until one fails.

    Attributes:
        silences: the longest one of each command.
        failed: what did; empty: nothing.
    """

    def __init__(self, folder: Path, cache: Path, log: Callable[[str], object]) -> None:
        self._folder, self._environment, self._log = folder, {DIRECTORY: str(cache)}, log
        self.silences: list[Silence] = []
        self.failed = ""

    def go(self, file: Path, steps: int, options: Sequence[str] = ()) -> None:
        """Do all of it; `options` are those of convert."""
        dialogues, pool = Path("converted", "dialogues.jsonl"), Path("converted", "pool.jsonl")
        self._run("convert", file, *options, "--output", "converted")
        model: Path = _BASE
        if (self._folder / dialogues).exists():
            model = Path("model")
            training = ("--architecture", "poly", "--base", _BASE, "--steps", steps, "--batch-size", _BATCH)
            self._run("train", *training, "--train", dialogues, "--output", model)
            self._run("evaluate", "--model", model, "--data", dialogues, "--pool", pool)
        self._run("build", "--model", model, "--pool", pool, "--store", "store")
        self._run("rank", ASKED, "--store", "store")
        self._serve()

    def _run(self, name: str, *arguments: object) -> None:
        if self.failed:
            return
        command = self._start(name, *arguments)
        status = command.ended()
        self._note(f"polyrank {name}", command.marks)
        if status:
            self.failed = f"{name} ended with {status}: {command.marks[-2].what}"

    def _serve(self) -> None:
        if self.failed:
            return
        server = self._start("serve", "--store", "store", "--port", 0)
        ready = server.until(READY)
        if ready is None:
            self.failed = f"serve ended with {server.ended()}: {server.marks[-2].what}"
            return
        try:
            found = _ranked(ready.what.removeprefix(READY), ASKED)
            self.failed = "" if found else "POST /rank found nothing"
        except OSError as error:
            self.failed = f"POST /rank: {error}"
        stopped = Mark(time.monotonic(), "SIGTERM")
        server.stop()
        if status := server.ended():
            self.failed = self.failed or f"serve ended with {status}: {server.marks[-2].what}"
        self._note("polyrank serve", [mark for mark in server.marks if mark.at <= ready.at])
        self._note("polyrank serve", [stopped, *(mark for mark in server.marks if mark.at > stopped.at)])

    def _start(self, name: str, *arguments: object) -> Watched:
        command = (sys.executable, "-m", "polyrank.service.cli", name, *arguments)
        return Watched(command, self._folder, self._environment)

    def _note(self, command: str, marks: Sequence[Mark]) -> None:
        self.silences.append(longest(command, marks))
        for mark in marks:
            self._log(f"{mark.at - marks[0].at:7.2f} {command}: {mark.what}")


def _ranked(url: str, text: str) -> list[Any]:
    body = json.dumps({"context": [text]}).encode()
    asked = urllib.request.Request(f"{url}/rank", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        results: list[Any] = json.load(answer)["results"]
    return results


def _turns(talk: Talk) -> Iterator[tuple[bool, str]]:
    """Yield the turns of a conversation with its reply, and whether the side that answers says each."""
    said = [*talk["context"], talk["response"]]
    for place, text in enumerate(said):
        yield (len(said) - place) % 2 == 1, text


def _lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _sharegpt(talks: Sequence[Talk], folder: Path) -> Path:
    path = folder / "sharegpt.json"
    path.write_text(json.dumps(_conversations(talks)))
    return path


def _conversations(talks: Sequence[Talk]) -> list[dict[str, Any]]:
    return [
        {
            "id": talk["id"],
            "conversations": [{"from": "gpt" if answers else "human", "value": text} for answers, text in _turns(talk)],
        }
        for talk in talks
    ]


def _openai(talks: Sequence[Talk], folder: Path) -> Path:
    rows = [
        {"messages": [{"role": "assistant" if answers else "user", "content": text} for answers, text in _turns(talk)]}
        for talk in talks
    ]
    return _lines(folder / "openai.jsonl", rows)


def _convai2(talks: Sequence[Talk], folder: Path) -> Path:
    lines = []
    for talk in talks:
        said = [f"your persona: {fact}" for fact in talk.get("persona", ())]
        turns = [*_turns(talk)]
        if turns[0][0]:
            turns.insert(0, (False, "__SILENCE__"))
        pairs = zip(turns[::2], turns[1::2], strict=True)
        candidates = "|".join(each for each in talk["candidates"] if each != talk["response"])
        said += [f"{asked}\t{reply}\t\t{candidates}|{reply}" for (_, asked), (_, reply) in pairs]
        lines += [f"{number} {line}\n" for number, line in enumerate(said, 1)]
    path = folder / "convai2.txt"
    path.write_text("".join(lines))
    return path


def _ubuntu(talks: Sequence[Talk], folder: Path) -> Path:
    path = folder / "ubuntu.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Context", "Ground Truth Utterance", *(f"Distractor_{n}" for n in range(9))])
        for talk in talks:
            context = "".join(f"{text} __eou__ __eot__ " for text in talk["context"])
            others = [each for each in talk["candidates"] if each != talk["response"]][:9]
            rows.writerow([context, f"{talk['response']} __eou__", *(f"{each} __eou__" for each in others)])
    return path


def _table(talks: Sequence[Talk], folder: Path) -> Path:
    path = folder / "tickets.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["Ticket ID", "Created At", "Author Type", "Body"])
        for talk in talks:
            for minute, (answers, text) in enumerate(_turns(talk)):
                author = "agent" if answers else "customer"
                rows.writerow([talk["id"], f"2026-01-02 10:{minute:02}", author, text])
    return path


def _beir(talks: Sequence[Talk], folder: Path) -> Path:
    (folder / "beir" / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "title": "", "text": talk["response"]} for n, talk in enumerate(talks)]
    _lines(folder / "beir" / "corpus.jsonl", documents)
    queries = [{"_id": f"q{n}", "text": talk["context"][-1]} for n, talk in enumerate(talks)]
    _lines(folder / "beir" / "queries.jsonl", queries)
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(len(talks)))
    (folder / "beir" / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder / "beir"


def _saved(talks: Sequence[Talk], folder: Path) -> Path:
    path = folder / "saved"
    path.mkdir()
    rows = pa.Table.from_pylist(_conversations(talks))
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(path / name), "wb") as file, pa.ipc.new_stream(file, rows.schema) as to:
        to.write_table(rows)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def _elasticsearch(talks: Sequence[Talk], folder: Path) -> Path:
    rows = [{"_index": "faq", "_id": talk["id"], "_source": {"body": talk["response"]}} for talk in talks]
    return _lines(folder / "elasticsearch.jsonl", rows)


def _qdrant(talks: Sequence[Talk], folder: Path) -> Path:
    points = [{"id": n, "payload": {"text": talk["response"]}, "vector": None} for n, talk in enumerate(talks)]
    path = folder / "scroll.json"
    path.write_text(json.dumps({"result": {"points": points, "next_page_offset": None}, "status": "ok"}))
    return path


WRITERS: dict[str, Callable[[Sequence[Talk], Path], Path]] = {
    "sharegpt": _sharegpt,
    "openai": _openai,
    "parlai": _convai2,
    "ubuntu-csv": _ubuntu,
    "table": _table,
    "beir": _beir,
    "hf-dataset": _saved,
    "elasticsearch": _elasticsearch,
    "qdrant": _qdrant,
}

COLUMNS_OF_TABLE = {"conversation": "Ticket ID", "who": "Author Type", "text": "Body", "time": "Created At"}
OPTIONS = {
    "table": ("--columns", ",".join(f"{key}={it}" for key, it in COLUMNS_OF_TABLE.items()), "--answering", "agent")
}


def sample() -> list[Talk]:
    """Return the bundled conversations."""
    return [json.loads(line) for line in _SAMPLE.read_text().splitlines()]


def lived(form: str, file: Path | None, steps: int, folder: Path, log: Callable[[str], object]) -> dict[str, Any]:
    """Go through one format; returns a row of the table."""
    (own := folder / form).mkdir()
    given = WRITERS[form](sample(), own) if file is None else file.resolve()
    day, began = Day(own, folder / "compiled", log), time.monotonic()
    day.go(given, steps, OPTIONS.get(form, ()))
    worst = max(day.silences, default=Silence(0.0, "", ""))
    return {
        "format": form,
        "seconds": round(time.monotonic() - began),
        "silent_s": round(worst.seconds, 1),
        "command": worst.command,
        "after": worst.after.replace("|", "/")[:80],
        "failed": day.failed or "-",
    }


def is_bad(row: dict[str, Any]) -> bool:
    """Whether something failed, took too long, or was silent for too long."""
    return bool(row["failed"] != "-" or row["seconds"] > MOST_SECONDS or row["silent_s"] > MOST_SILENT)


def _given(text: str) -> tuple[str, Path | None]:
    form, _, file = text.partition("=")
    if form not in WRITERS:
        raise argparse.ArgumentTypeError(f"{form!r} is none of {', '.join(WRITERS)}")
    return form, Path(file) if file else None


def main(argv: Sequence[str] | None = None) -> int:
    """Go through all formats, or those that are named, and print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("formats", nargs="*", type=_given, metavar="FORMAT[=FILE]", help="default: all")
    parser.add_argument("--steps", type=int, default=10, help="of training; default: 10")
    parser.add_argument("--log", type=Path, help="write every line here, with the second in which it came")
    given = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, (given.log or Path(os.devnull)).open("w") as log:
        for form, file in given.formats or [(form, None) for form in WRITERS]:
            rows.append(lived(form, file, given.steps, Path(folder), lambda line: print(line, file=log, flush=True)))
            print(f"{rows[-1]}", file=sys.stderr, flush=True)
    print(table(rows, COLUMNS))
    return int(any(map(is_bad, rows)))


if __name__ == "__main__":
    sys.exit(main())
