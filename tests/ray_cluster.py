"""A Ray cluster of this machine, for the tests of tests/scale."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

WITHIN_SECONDS = 120  # for what takes seconds on a machine with nothing else to do


class Cluster:
    """A head and two nodes of one processor each."""

    def __init__(self) -> None:
        # Not in pytest's directory: the paths of Ray's sockets would be too long.
        self.directory = Path(tempfile.mkdtemp(prefix="polyrank-ray-"))
        self.environment = {
            **os.environ, "RAY_TMPDIR": str(self.directory), "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        settings = {
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # this machine only
        }
        with (self.directory / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "scale" / "raylets.py"), "2"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**self.environment, **settings},
                text=True,
            )
        line = self._process.stdout.readline()
        assert line, (self.directory / "log").read_text()
        started = json.loads(line)
        self.address: str = started["address"]
        self.control_plane = psutil.Process(started["head"])
        self.nodes = [psutil.Process(pid) for pid in started["raylets"]]

    def processes(self) -> list[psutil.Process]:
        """Every process of the cluster."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def actors(self, name: str) -> list[psutil.Process]:
        """Those of the actors of a class."""
        return [each for each in self.processes() if title(each).startswith(f"ray::{name}")]

    def listening(self, user: psutil.Process) -> list[str]:
        """The addresses on which its processes and one that uses it listen."""
        return [
            each.laddr.ip
            for process in (user, *self.processes())
            for each in process.net_connections(kind="inet")
            if each.status == psutil.CONN_LISTEN
        ]

    def close(self) -> None:
        self._process.communicate(timeout=WITHIN_SECONDS)
        shutil.rmtree(self.directory)


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
