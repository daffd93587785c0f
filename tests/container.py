"""Containers as Docker runs them, by namespaces and mounts alone; for root on Linux.

A container has a root of its own, which is read-only, volumes, process numbers of its own, and no capabilities.
Containers of one network share a loopback, and reach nothing else.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# ROOT FOLDER UID GID, of each mount HOW SOURCE TARGET (the source of a tmpfs is its options), then -- and the command.
ENTER = r"""
set -eu
root=$1 folder=$2 uid=$3 gid=$4
shift 4
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
  if [ "$1" = tmpfs ]; then
    mkdir -p "$root$3"
    mount -t tmpfs -o "$2" tmpfs "$root$3"
  else
    if [ -d "$2" ]; then mkdir -p "$root$3"; else mkdir -p "$root${3%/*}"; [ -e "$root$3" ] || : >"$root$3"; fi
    mount --bind "$2" "$root$3"
    mount -o "remount,bind,$1" "$root$3"
  fi
  shift 3
done
shift
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for name in null zero full random urandom; do
  : >"$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mount -t tmpfs -o size=64m,nosuid,nodev,noexec tmpfs "$root/dev/shm"
mount -o remount,bind,ro "$root"
exec chroot "$root" env --chdir="$folder" setpriv --reuid "$uid" --regid "$gid" --clear-groups \
  --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
TMPFS = "noexec,nosuid,nodev,mode=1777"  # Docker's own
FETCH = """
import sys, urllib.error, urllib.request as request
body = sys.stdin.buffer.read() or None
asked = request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
try:
    answer = request.build_opener(request.ProxyHandler({})).open(asked, timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
sys.stdout.flush()
sys.stdout.buffer.write(answer.read())
"""


@dataclass(frozen=True, slots=True)
class Image:
    """Files, and how they are run unless a container says otherwise; `user` is UID:GID."""

    root: Path
    user: str
    environment: dict[str, str]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    folder: str = "/"
    probe: tuple[str, ...] = ()
    patience_s: float = 0  # of whoever waits for the probe to pass


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine in a container; without a source, memory."""

    target: str
    source: Path | None = None
    read_only: bool = False

    def words(self) -> tuple[str, str, str]:
        """As ENTER takes them."""
        if self.source is None:
            return "tmpfs", TMPFS, self.target
        return "ro" if self.read_only else "rw", str(self.source), self.target


class Network:
    """A loopback on which every port is free."""

    def __init__(self) -> None:
        held = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]
        self._process = subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "up\n", "no network of its own could be made"
        self.flag = f"--net=/proc/{self._process.pid}/ns/net"

    def close(self) -> None:
        """Let it go; it ends with its last process."""
        self._process.communicate()

    def fetch(self, url: str, body: object = None) -> tuple[int, str]:
        """Status and text; status 0 while nobody listens."""
        sent = b"" if body is None else json.dumps(body).encode()
        command = ["nsenter", self.flag, sys.executable, "-S", "-c", FETCH, url]
        done = subprocess.run(command, input=sent, capture_output=True)
        if done.returncode:
            assert b"refused" in done.stderr, done.stderr.decode()
            return 0, ""
        status, _, text = done.stdout.decode().partition("\n")
        return int(status), text

    def json(self, url: str, body: object = None) -> Any:
        """What an answer with status 200 says."""
        status, text = self.fetch(url, body)
        assert status == 200, (url, status, text)
        return json.loads(text)


class Container:
    """A running one; `peak` is the most memory that its processes were seen to hold in all, in bytes."""

    def __init__(
        self,
        image: Image,
        network: Network,
        log: Path,
        mounts: Sequence[Mount] = (),
        command: Sequence[str] | None = None,
        entrypoint: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
        user: str = "",
    ) -> None:
        self.image, self.log, self.peak = image, log, 0
        self._user = (user or image.user).split(":")
        self._environment = {**image.environment, **(environment or {})}
        if entrypoint is None:
            entrypoint, command = image.entrypoint, image.command if command is None else command
        words = [word for mount in mounts for word in mount.words()]
        start = ["setpriv", "--pdeathsig", "KILL", "nsenter", network.flag]  # it ends with the tests, however they end
        start += ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        start += ["sh", "-c", ENTER, "enter", str(image.root), image.folder]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*start, *self._user, *words, "--", *entrypoint, *(command or ())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def first(self) -> psutil.Process:
        """Its process number 1."""
        deadline = time.monotonic() + 10
        while not (found := psutil.Process(self.process.pid).children()):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)
        return found[0]

    def run(self, *command: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as `docker exec` does."""
        uid, gid = self._user
        entered = ["nsenter", "--target", str(self.first().pid), "--net", "--mount", "--pid", "--root", "--wd"]
        as_user = ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        words = [*entered, *as_user, *command]
        return subprocess.run(words, env=self._environment, text=True, capture_output=True, timeout=seconds)

    def until_healthy(self, probe: Sequence[str], seconds: float) -> float:
        """Wait until a health check passes; returns the seconds that took."""
        begun = time.monotonic()
        while True:
            self.measure()
            assert self.process.poll() is None, self.said()
            checked = self.run(*probe)
            if checked.returncode == 0:
                return time.monotonic() - begun
            assert time.monotonic() - begun < seconds, checked.stderr + self.said()
            time.sleep(0.5)

    def measure(self) -> int:
        """The memory that its processes hold now, in bytes; shared pages count for each."""
        held = 0
        for each in psutil.Process(self.process.pid).children(recursive=True):
            try:
                held += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self.peak = max(self.peak, held)
        return held

    def finish(self, seconds: float) -> int:
        """Wait for its end; returns the exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said()
            self.measure()
            time.sleep(0.1)
        return self.process.wait()

    def stop(self, seconds: float, number: int = signal.SIGTERM) -> int:
        """Signal process 1, as `docker stop` does, and wait; returns the exit status."""
        os.kill(self.first().pid, number)
        return self.finish(seconds)

    def close(self) -> None:
        """End all of it at once."""
        self.process.kill()
        self.process.wait()
