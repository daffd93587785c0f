"""Log lines on standard error, as text or as one JSON object a line. No user's text is ever logged."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal


class TextFormat(logging.Formatter):
    """`time level logger message key=value ...`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Append the record's own fields to the message line."""
        pairs = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        head, newline, rest = super().format(record).partition("\n")
        return f"{head} {pairs}{newline}{rest}" if pairs else head + newline + rest


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
        return orjson.dumps(line, default=str).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def configure(level: str, fmt: Literal["text", "json"], force: bool = True) -> None:
    """Log to standard error; of libraries only warnings, of some only errors.

    Without `force`, a program that has handlers of its own keeps them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if fmt == "json" else TextFormat())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=force)
    for name in ("uvicorn", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("transformers", "huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
