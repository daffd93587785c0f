"""A disk that is full for what replaces one file."""

from pathlib import Path

import pytest

FULL = Path("/dev/full")


def fill_disk(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Put the next temporary file that is to replace `path` on a device that is always full; those of others not."""

    def token(nbytes: int) -> str:
        drawn = "0" * 2 * nbytes
        temporary = path.with_name(f".{path.name}.{drawn}.tmp")
        if not temporary.is_symlink():
            temporary.symlink_to(FULL)
        return drawn

    monkeypatch.setattr("polyrank.model.durable.token_hex", token)
