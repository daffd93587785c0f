"""The real builder without the seconds that importing torch takes each time.

Run as a script it imports everything once, then for each JSON line of standard input forks a process that does what
`python -m index_builder` does: {"arguments": […], "environment": {…}, "stderr": path}. On standard output come the pid,
and when the process has ended its exit status (negative: the signal that killed it), each on a line.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


class Nursery:
    """Starts builders one at a time."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        command = [sys.executable, __file__]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def start(self, root: Path, job_id: str, **environment: str) -> int:
        """Start a builder; returns its pid."""
        arguments = ["polyrank.index_builder", "--store", str(root), "--job", job_id]
        job = {"arguments": arguments, "environment": environment, "stderr": str(self._errors)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._line()

    def wait(self) -> tuple[int, str]:
        """Wait for its end; returns its exit status and what it said on standard error."""
        return self._line(), self._errors.read_text()

    def _line(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _be_builder(job: dict[str, Any]) -> None:
    from polyrank.index_builder.__main__ import main

    os.environ.update(job["environment"])
    os.dup2(os.open(job["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = job["arguments"]
    status = 1
    try:
        status = main()
    finally:
        os._exit(status)


def _main() -> None:
    for module in (
        "polyrank.index_builder.__main__",
        "polyrank.model.rankers.load",
        "transformers.models.bert.modeling_bert",
    ):
        import_module(module)  # what each builder would import for itself
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _be_builder(json.loads(line))
        _say(pid)
        _say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
