"""Log lines on standard error, as text or as one JSON object a line. No user's text is ever logged.

A thread of its own writes them, so that nobody waits for whoever reads them: a pipe that is full, a terminal that was
stopped, a disk that hangs.
"""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from threading import Condition, Thread
from typing import Any, Final, Literal

from polyrank.model import telling

# The name of the pool that a thread or a task works for: each of its lines tells it.
POOL: Final[ContextVar[str]] = ContextVar("pool", default="")
# Lines that wait for the writer may take so much memory; further ones are dropped.
WAITING_BYTES: Final = 4 * 2**20
# The end of the process waits so long for the writer.
FLUSH_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 0.05


# What a terminal obeys, and what turns the order of letters around: names and texts of others may hold it.
_OBEYED = {ord(each): f"\\x{ord(each):02x}" for each in map(chr, (*range(32), *range(127, 160))) if each not in "\n\t"}
_OBEYED |= {at: f"\\u{at:04x}" for at in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def harmless(text: str) -> str:
    """Return a text with escapes in place of what a terminal would obey."""
    return text.translate(_OBEYED)


class TextFormat(logging.Formatter):
    """`time level logger message key=value ...`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Append the record's own fields to the message line."""
        pairs = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        head, newline, rest = super().format(record).partition("\n")
        return harmless((f"{head} {pairs.replace(chr(10), ' ')}" if pairs else head) + newline + rest)


class JsonFormat(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record and its own fields."""
        import orjson  # a command writes no JSON lines, and answers wrong usage without any package

        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except orjson.JSONEncodeError:
            return orjson.dumps({_plain(name): orjson.Fragment(_json(value)) for name, value in line.items()}).decode()


def _json(value: object) -> bytes:
    """Encode a value; as a text where JSON has no other form for it: half of a surrogate pair, more than 64 bits."""
    import orjson

    try:
        return orjson.dumps(value, default=str)
    except orjson.JSONEncodeError:
        return orjson.dumps(_plain(value))


def _plain(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


class LineWriter(logging.Handler):
    """Writes lines to a descriptor from a thread of its own, and drops those that find no room to wait.

    The lines that wait take at most `waiting_bytes`. After a gap a line says how many are missing.
    """

    def __init__(self, descriptor: int, waiting_bytes: int) -> None:
        super().__init__()
        self._descriptor, self._most = descriptor, waiting_bytes
        self._lines: deque[bytes] = deque()
        self._changed = Condition()
        self._bytes = self._missing = self._uncounted = 0
        self._closed = False
        self._count: Callable[[int], None] | None = None
        # The interpreter does not wait for it at its end: it may never come back from a write.
        Thread(target=self._write_all, name="log", daemon=True).start()

    def count_dropped_by(self, count: Callable[[int], None]) -> None:
        """Call `count` with the number of lines dropped, now for those dropped before and later for each."""
        with self._changed:
            self._count = count
            self._dropped(0)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line to the writer, or drop it."""
        try:
            line = self._encoded(record)
        except Exception as error:  # whoever logs must not fail by it, nor wait for standard error
            fields = {"where": f"{record.module}:{record.lineno}", "why": type(error).__name__}
            attributes = {"levelno": logging.ERROR, "levelname": "ERROR", "fields": fields, "name": record.name}
            line = self._encoded(logging.makeLogRecord({"msg": "a log line could not be formatted", **attributes}))
        telling.told_now()
        with self._changed:
            if self._closed or self._bytes + len(line) > self._most:
                self._dropped(1)
                return
            if self._missing:
                line = self._missing_line() + line
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, FLUSH_SECONDS)

    def close(self) -> None:
        """Let the writer end once it has written what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")

    def _missing_line(self) -> bytes:
        attributes = {"levelno": logging.WARNING, "levelname": "WARNING", "fields": {"lines": self._missing}}
        self._missing = 0
        return self._encoded(logging.makeLogRecord({"name": __name__, "msg": "log lines were dropped", **attributes}))

    def _dropped(self, lines: int) -> None:
        self._missing += lines
        self._uncounted += lines
        if self._count is not None and self._uncounted:
            self._count(self._uncounted)
            self._uncounted = 0

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines) or self._closed)
                if not self._lines:  # there will be none
                    return
                line = self._lines.popleft()
            is_written = _written(self._descriptor, line)
            with self._changed:
                self._bytes -= len(line)
                if not is_written:
                    self._dropped(1)
                self._changed.notify_all()


def _written(descriptor: int, line: bytes) -> bool:
    """Write a line, however long that takes; returns whether it is all there."""
    while line:
        try:
            line = line[os.write(descriptor, line) :]
        except BlockingIOError:  # another process has made the pipe so
            time.sleep(_AGAIN_SECONDS)
        except OSError:  # a full disk, or nobody can read any more
            return False
    return True


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {"pool": pool, **fields} if (pool := POOL.get()) else fields


def configure(level: str, fmt: Literal["text", "json"], tells: bool = True) -> None:
    """Log to standard error, if there is one; of libraries only warnings, of some only errors.

    tells: whether also what long work does.
    """
    handler = logging.NullHandler() if sys.stderr is None else LineWriter(sys.stderr.fileno(), WAITING_BYTES)
    handler.setFormatter(JsonFormat() if fmt == "json" else TextFormat())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    telling.log.setLevel(logging.NOTSET if tells else logging.WARNING)
    _quiet_libraries()


class _Waits(logging.Handler):
    """Prints what long work does, above a bar if there is one; not stages that have ended soon."""

    def emit(self, record: logging.LogRecord) -> None:
        seconds, message = _fields(record)["seconds"], record.getMessage()
        if seconds < telling.SILENT_SECONDS and not message.startswith(telling.STILL):
            return
        telling.told_now()
        line = f"{message}: {seconds:.0f} s"
        bar = getattr(sys.modules.get("tqdm"), "tqdm", None)  # another thread may be importing the module
        if bar is None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        else:
            bar.write(line, file=sys.stderr)


def show_warnings() -> None:
    """Let a command print warnings with their fields, and what takes it long.

    A program that calls it and has handlers of its own shows warnings by them.
    """
    warnings, waits = logging.StreamHandler(), _Waits()
    warnings.setFormatter(TextFormat())
    warnings.setLevel(logging.WARNING)
    waits.addFilter(logging.Filter(telling.log.name))
    logging.basicConfig(level=logging.WARNING, handlers=[warnings, waits])
    telling.log.setLevel(logging.INFO)
    _quiet_libraries()


def _quiet_libraries() -> None:
    for name in ("uvicorn", "faiss"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    for name in ("transformers", "huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)


def count_dropped_by(count: Callable[[int], None]) -> None:
    """Count from now on, and once for before, the lines that were dropped because nobody read them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineWriter):
            handler.count_dropped_by(count)
