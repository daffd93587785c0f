"""The commands and files of docs/how-to/go-live.md, with its places moved into one folder.

What needs a machine of its own is left out: installing, and systemd, whose unit the tests start by themselves. nginx,
promtool and amtool are Debian's; a test whose program is not there is skipped.
"""

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from pasted import REPOSITORY, fenced

PAGE = (REPOSITORY / "docs/how-to/go-live.md").read_text(encoding="utf-8")
HOST = "rank.shop.example"
INSTALLS = re.compile(r"^(python3 -m venv |/opt/\S+/pip install ).*\n", re.MULTILINE)
SYSTEMCTL = re.compile(r"^systemctl (\w+) polyrank@(\d+)\n", re.MULTILINE)
RANK = json.dumps({"context": "my parcel is late"}).encode()
TOOLS = f"{os.environ['PATH']}:/usr/sbin:/sbin"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tool(name: str) -> str:
    """Where Debian's program of this name is."""
    found = shutil.which(name, path=TOOLS)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


class Machine:
    """A folder in the place of `/`, with polyrank installed, and what the page puts there; other ports than its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {name: free_port() for name in ("8000", "8001", "9093", "443")}
        for name in (
            "etc/polyrank",
            "etc/prometheus",
            "etc/ssl",
            "opt",
            "var/lib/polyrank",
            "var/log/nginx",
            "var/backups/polyrank",
        ):
            (root / name).mkdir(parents=True)
        for version in ("0.1.0", "0.2.0"):
            (root / f"opt/polyrank-{version}").symlink_to(sys.prefix)
        (root / "var/lib/polyrank/model").symlink_to(REPOSITORY / "checkpoints/chat-poly")
        shutil.copy(REPOSITORY / "examples/support/pool.jsonl", root / "var/lib/polyrank/replies.jsonl")
        text = re.sub(r"(?<![\w.])/(opt|etc|var)/", rf"{root}/\1/", INSTALLS.sub("", PAGE))
        text = re.sub(r"((?:127\.0\.0\.1|localhost):|listen )(\d+)", lambda at: f"{at[1]}{self.ports[at[2]]}", text)
        self.page = text.replace("15s", "300s").replace("retry 60", "retry 300")  # this machine may be busy
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.keys: list[str] = []

    def section(self, number: int) -> str:
        return self.page.split("\n## ")[number]

    def file(self, number: int, kind: str) -> Path:
        """Write the file that a section shows where its first line says."""
        [text] = fenced(self.section(number), kind)
        path = Path(text.partition("\n")[0].removeprefix("# "))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def paste(self, number: int, at: int = 0) -> str:
        """Run a shell block of a section; returns what it prints."""
        lines, *rest = SYSTEMCTL.split([*fenced(self.section(number))][at])
        printed = self.run(lines)
        for verb, name, lines in zip(*[iter(rest)] * 3, strict=True):
            if verb != "start":
                self.stop(name)
            if verb != "stop":
                self.start(name)
            printed += self.run(lines)
        return printed

    def run(self, lines: str) -> str:
        environment = {**os.environ, "PATH": f"{self.root}/opt/polyrank/bin:{TOOLS}"}
        command = ["bash", "-euc", lines]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{lines}\n{done.stdout}{done.stderr}{self.logged()}"
        return done.stdout

    def start(self, name: str) -> None:
        """Do what systemd does with the unit."""
        unit = [line.partition("=") for line in self.file(1, "ini").read_text().splitlines()]
        given = [each for kind, _, value in unit if kind == "Environment" for each in shlex.split(value)]
        theirs = dict(each.replace("%i", str(self.ports[name])).split("=", 1) for each in given)
        ours = {"POLYRANK_BACKEND": "torch", "POLYRANK_PRECISION": "float32"}  # nothing is compiled
        [command] = [shlex.split(value) for kind, _, value in unit if kind == "ExecStart"]
        with (self.root / "log").open("ab") as log:
            self.servers[name] = subprocess.Popen(command, env={**os.environ, **ours, **theirs}, stdout=log, stderr=log)

    def stop(self, name: str) -> None:
        server = self.servers.pop(name)
        server.terminate()
        assert server.wait(45) == 0, "TimeoutStopSec"

    def restarted(self) -> None:
        """Start the server, which is stopped, and wait until it is ready."""
        self.start("8000")
        while status(self.ports["8000"], "/readyz") != 200:
            assert self.servers["8000"].poll() is None, self.logged()
            time.sleep(0.1)

    def logged(self) -> str:
        path = self.root / "log"
        return path.read_text() if path.exists() else ""


def status(port: int, path: str) -> int | None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection, suppress(OSError):
        connection.request("GET", path)
        return connection.getresponse().status
    return None


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    own = Machine(tmp_path_factory.mktemp("machine"))
    own.paste(1)
    own.keys = own.paste(2).split()
    pem, key = (own.root / f"etc/ssl/rank.{end}" for end in ("pem", "key"))
    subject = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*command, "-keyout", key, "-out", pem], check=True, capture_output=True)
    own.restarted()
    yield own
    for name in list(own.servers):
        own.stop(name)


class Public(http.client.HTTPSConnection):
    """A connection to the proxy, by the name that callers use."""

    def __init__(self, machine: Machine) -> None:
        context = ssl.create_default_context(cafile=str(machine.root / "etc/ssl/rank.pem"))
        super().__init__(HOST, machine.ports["443"], timeout=300, context=context)
        self._context = context

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), self.timeout)  # the name leads nowhere
        self.sock = self._context.wrap_socket(plain, server_hostname=HOST)

    def ask(
        self, method: str, path: str, key: str = "", body: bytes | None = None, more: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "X-API-Key": key, "Host": HOST, **(more or {})}
        self.request(method, path, body, headers)
        self.answer = self.getresponse()
        return self.answer.status, self.answer.read()


def ask(
    machine: Machine, method: str, path: str, key: str, body: bytes | None = None, more: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Ask over a connection of its own."""
    with closing(Public(machine)) as public:
        return public.ask(method, path, key, body, more)


@pytest.fixture
def proxy(machine: Machine) -> Iterator[None]:
    """The page's nginx, at a port that needs no rights, with a certificate of our own."""
    path = machine.root / "etc/nginx/nginx.conf"
    kept = "".join(
        f"{name}_temp_path {machine.root}/kept; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    http = f"{kept} include {machine.file(3, 'nginx')};"
    path.write_text(f"daemon off; pid {machine.root}/pid; events {{}} http {{ {http} }}")
    command = [tool("nginx"), "-p", str(machine.root), "-e", "stderr", "-c", str(path)]
    with (machine.root / "nginx.log").open("wb") as log, subprocess.Popen(command, stderr=log) as running:
        try:
            while not listens(machine.ports["443"]):
                assert running.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            yield
        finally:
            running.terminate()


@pytest.mark.usefixtures("proxy")
def test_the_proxy_lets_callers_rank_and_nobody_further(machine: Machine) -> None:
    shop, operator = machine.keys
    with closing(Public(machine)) as public:
        assert public.ask("GET", "/readyz")[0] == 200
        assert public.ask("POST", "/rank", body=RANK)[0] == 401
        spoofed = {"X-Request-ID": "mine", "X-Forwarded-Host": "evil.example", "X-Forwarded-For": "127.0.0.1"}
        code, answer = public.ask("POST", "/rank", shop, RANK, spoofed)
        assert (code, len(json.loads(answer)["results"])) == (200, 10)
        request_id = public.answer.headers["X-Request-ID"]
        assert request_id != "mine"
        until, theirs = time.monotonic() + 20, machine.root / "var/log/nginx/rank.log"
        while not (f'"request_id":"{request_id}"' in machine.logged() and request_id in theirs.read_text()):
            assert time.monotonic() < until
        assert public.ask("POST", "/rank", shop, b"{", {"Content-Length": str(17 << 20)})[0] == 413
    names = ("index", "index/jobs", "%69ndex", "INDEX", "index/", "metrics", "metrics/")
    for name in (*names, "/index", "./index", "x/../index", "index?a", "x/..//metrics", "pools/a%2Fb/index"):
        assert ask(machine, "GET", f"/{name}", operator)[0] in (400, 404), name
    for name in ("index", "metrics", "pools/shop/index", "pools/shop/metrics", "pools/shop/index/jobs"):
        assert b"<center>nginx" in ask(machine, "GET", f"/{name}", operator)[1], "without asking the server"
    assert ask(machine, "GET", "/readyz", shop, more={"Host": "evil.example"})[0] == 421
    assert status(machine.ports["8000"], "/metrics") == 200


@pytest.mark.usefixtures("proxy")
def test_no_request_fails_during_an_upgrade(machine: Machine) -> None:
    answered, stop = Counter[int](), threading.Event()

    def call() -> None:
        with closing(Public(machine)) as public:
            while not stop.is_set():
                answered[public.ask("POST", "/rank", machine.keys[0], RANK)[0]] += 1
                answered[ask(machine, "POST", "/rank", machine.keys[0], RANK)[0]] += 1
                time.sleep(0.1)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    machine.paste(6)
    stop.set()
    for caller in callers:
        caller.join()
    assert answered[200] > 20
    assert set(answered) == {200}
    assert os.readlink(machine.root / "opt/polyrank") == "polyrank-0.2.0"
    assert not listens(machine.ports["8001"])


def test_a_backup_is_restored_in_the_place_of_a_damaged_store(machine: Machine) -> None:
    [cron] = fenced(machine.section(4), "cron")
    _, line = cron.splitlines()
    *_, user, command = line.split(None, 6)[:7]
    assert user == "polyrank"
    subprocess.run(["sh", "-c", command.replace("\\%", "%")], check=True)
    today = datetime.now().strftime("%a")
    assert [each.name for each in (machine.root / "var/backups/polyrank").iterdir()] == [f"{today}.tar.zst"]
    machine.stop("8000")
    machine.page = machine.page.replace("/Mon.tar.zst", f"/{today}.tar.zst")
    machine.paste(4)
    machine.restarted()


class Alerts(BaseHTTPRequestHandler):
    """Keeps what Alertmanager would be told: Debian's own starts only where it is installed."""

    told: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        self.told.extend(each["labels"] for each in json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_files_of_alerts_fit_this_machine_and_the_trial_pages(machine: Machine) -> None:
    for name in ("promtool", "amtool"):
        tool(name)
    machine.paste(5)
    rules = (machine.root / "etc/prometheus/prometheus.yml").read_text()
    assert f"127.0.0.1:{machine.ports['8000']}" in rules
    assert f"127.0.0.1:{machine.ports['9093']}" in rules
    with HTTPServer(("127.0.0.1", machine.ports["9093"]), Alerts) as server:
        threading.Thread(target=server.serve_forever).start()
        machine.paste(5, 1)
        server.shutdown()
    assert Alerts.told == [{"alertname": "Trial", "severity": "page"}]
