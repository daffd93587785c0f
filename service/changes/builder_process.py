"""A builder's process: `python -m polyrank.index_builder --job ID`, started, cancelled and waited for."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from polyrank.model.inference.runners import Runner
from polyrank.service import PREFIX
from polyrank.service.settings import Settings

GRACE_SECONDS = 10.0
TAIL_BYTES = 4096


class BuilderProcess:
    """A builder that has been started.

    `is_publishing` returns whether it is about to end by itself, and would leave what others see if it were killed now.
    `cancelled`: `cancel` was called before its end.
    """

    def __init__(self, process: asyncio.subprocess.Process, is_publishing: Callable[[], bool]) -> None:
        self._process, self._is_publishing = process, is_publishing
        self.cancelled = False

    @classmethod
    async def start(
        cls, settings: Settings, store: Path, job_id: str, runner: Runner, is_publishing: Callable[[], bool]
    ) -> "BuilderProcess":
        """Start the builder of a job of a store."""
        process = await asyncio.create_subprocess_exec(
            # -P: nothing is imported from the folder that the server was started in.
            *(sys.executable, "-P", "-m", "polyrank.index_builder", "--store", str(store), "--job", job_id),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(settings, runner),
            start_new_session=True,  # Ctrl-C at the server's terminal is for the server
        )
        return cls(process, is_publishing)

    def cancel(self) -> None:
        """Send SIGTERM, and SIGKILL when the grace is over, unless it publishes then; a second call does nothing."""
        if self.cancelled or self._process.returncode is not None:
            return
        self.cancelled = True
        with suppress(ProcessLookupError):
            self._process.terminate()
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        if self._process.returncode is None and not self._is_publishing():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> tuple[int, list[str]]:
        """Wait for its end; returns the exit status and the last lines on standard error."""
        assert self._process.stderr is not None, "opened as a pipe"
        tail = b""
        while chunk := await self._process.stderr.read(TAIL_BYTES):
            tail = (tail + chunk)[-TAIL_BYTES:]
        status = await self._process.wait()
        return status, tail.decode("utf-8", "replace").strip().splitlines()


def _environment(settings: Settings, runner: Runner) -> dict[str, str]:
    """The server's environment, with its Redis and cluster, what runs the job's model, and where that is kept."""
    told = {
        "REDIS_URL": settings.redis(),
        "CLUSTER": settings.cluster,
        "BACKEND": runner.backend,
        "PRECISION": runner.precision,
        "COMPILED_CACHE_DIR": str(settings.compiled_cache_dir or ""),
        "COMPILED_CACHE_MB": str(settings.compiled_cache_mb),
    }
    return {**os.environ, **{f"{PREFIX}{name}": value or "" for name, value in told.items()}}
