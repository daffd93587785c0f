"""The commands and files of docs/how-to/go-live.md, with its places moved into one folder.

What needs a machine of its own is left out: installing, and systemd, whose unit the tests start by themselves. Proxies
and tools are Debian's; a test whose program is not there is skipped.
"""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from pasted import REPOSITORY, fenced

PAGE = (REPOSITORY / "docs/how-to/go-live.md").read_text(encoding="utf-8")
HOST = "rank.shop.example"
ELSEWHERE = re.compile(r"^(systemctl |python3 -m venv |/opt/\S+/pip install ).*\n", re.MULTILINE)
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
    """A folder in the place of `/`, with polyrank installed, and what the page puts there."""

    def __init__(self, root: Path) -> None:
        self.root, self.server_port, self.tls_port, self.alerts_port = root, free_port(), free_port(), free_port()
        for name in ("etc/polyrank", "etc/prometheus", "etc/ssl", "opt", "var/lib/polyrank", "var/backups/polyrank"):
            (root / name).mkdir(parents=True)
        for version in ("0.1.0", "0.2.0"):
            (root / f"opt/polyrank-{version}").symlink_to(sys.prefix)
        (root / "var/lib/polyrank/model").symlink_to(REPOSITORY / "checkpoints/chat-poly")
        shutil.copy(REPOSITORY / "examples/support/pool.jsonl", root / "var/lib/polyrank/replies.jsonl")
        self.page = self.moved(PAGE)
        self.server: subprocess.Popen[bytes] | None = None
        self.keys: list[str] = []

    def moved(self, text: str) -> str:
        text = re.sub(r"(?<![\w.])/(opt|etc|var)/", rf"{self.root}/\1/", ELSEWHERE.sub("", text))
        text = re.sub(r"(127\.0\.0\.1|localhost):8000", rf"\1:{self.server_port}", text)
        text = text.replace("127.0.0.1:9093", f"127.0.0.1:{self.alerts_port}")
        text = re.sub(r"\b(15|30)s\b", "300s", text)  # this machine may be busy
        return text.replace("listen 443", f"listen {self.tls_port}")

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
        block = [*fenced(self.section(number))][at]
        path = f"{self.root}/opt/polyrank/bin:{TOOLS}"
        done = subprocess.run(
            ["bash", "-euc", block], cwd=REPOSITORY, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Do what systemd does with the unit, and wait until the server is ready."""
        unit = [line.partition("=") for line in self.file(1, "ini").read_text().splitlines()]
        given = [shlex.split(value) for name, _, value in unit if name == "Environment"]
        [command] = [shlex.split(value) for name, _, value in unit if name == "ExecStart"]
        ours = {"POLYRANK_PORT": str(self.server_port), "POLYRANK_BACKEND": "torch", "POLYRANK_PRECISION": "float32"}
        theirs = dict(each.split("=", 1) for line in given for each in line)
        log = (self.root / "log").open("ab")
        self.server = subprocess.Popen(command, env={**os.environ, **ours, **theirs}, stdout=log, stderr=log)
        log.close()

    def wait(self) -> None:
        assert self.server is not None
        until = time.monotonic() + 120
        while status(self.server_port, "/readyz") != 200:
            assert self.server.poll() is None, (self.root / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)

    def stop(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGTERM)
            assert self.server.wait(45) == 0  # TimeoutStopSec
            self.server = None


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
    own.start()
    own.wait()
    yield own
    own.stop()


class Public(http.client.HTTPSConnection):
    """A connection to the proxy, by the name that callers use."""

    def __init__(self, machine: Machine) -> None:
        context = ssl.create_default_context(cafile=str(machine.root / "etc/ssl/rank.pem"))
        super().__init__(HOST, machine.tls_port, timeout=60, context=context)
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


def ask(machine: Machine, method: str, path: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Ask over a connection of its own."""
    with closing(Public(machine)) as public:
        return public.ask(method, path, key, body)


@contextmanager
def behind(machine: Machine, proxy: str) -> Iterator[None]:
    """Run a proxy with the page's file, at a port that needs no rights, with a certificate of our own."""
    program = tool(proxy)
    certificate = f"tls {machine.root}/etc/ssl/rank.pem {machine.root}/etc/ssl/rank.key"
    if proxy == "caddy":
        path = machine.file(3, "caddy")
        site = f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{HOST}:{machine.tls_port} {{\n\t{certificate}\n"
        path.write_text(path.read_text().replace(f"{HOST} {{\n", site))
        command = [program, "run", "--adapter", "caddyfile", "--config", str(path)]
    else:
        path = machine.root / "etc/nginx/nginx.conf"
        kept = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        http = "".join(f"{name}_temp_path {machine.root}/kept; " for name in kept)
        http += f"access_log off; include {machine.file(3, 'nginx')};"
        path.write_text(f"daemon off; pid {machine.root}/pid; events {{}} http {{ {http} }}")
        command = [program, "-p", str(machine.root), "-e", "stderr", "-c", str(path)]
    home = {**os.environ, "HOME": str(machine.root), "XDG_DATA_HOME": str(machine.root)}
    with (machine.root / f"{proxy}.log").open("wb") as log:
        running = subprocess.Popen(command, env=home, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while not listens(machine.tls_port):
            assert running.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        yield
    finally:
        running.terminate()
        running.wait(20)


@pytest.mark.parametrize("proxy", ["caddy", "nginx"])
def test_a_proxy_lets_callers_rank_and_nobody_further(machine: Machine, proxy: str) -> None:
    shop, operator = machine.keys
    with behind(machine, proxy), closing(Public(machine)) as public:
        assert public.ask("GET", "/readyz")[0] == 200
        assert public.ask("POST", "/rank", body=RANK)[0] == 401
        spoofed = {"X-Request-ID": "mine", "X-Forwarded-Host": "evil.example", "X-Forwarded-For": "127.0.0.1"}
        code, answer = public.ask("POST", "/rank", shop, RANK, spoofed)
        assert (code, len(json.loads(answer)["results"])) == (200, 10)
        request_id = public.answer.headers["X-Request-ID"]
        assert request_id != "mine"
        until = time.monotonic() + 20
        while f'"request_id":"{request_id}"' not in (machine.root / "log").read_text():
            assert time.monotonic() < until
        assert public.ask("POST", "/rank", shop, b"{", {"Content-Length": str(17 << 20)})[0] == 413
        names = ("index", "index/jobs", "%69ndex", "INDEX", "index/", "pools/shop/index", "metrics", "metrics/")
        for name in (*names, "/index", "./index", "x/../index", "index?a", "x/..//metrics", "pools/a%2Fb/index"):
            assert ask(machine, "GET", f"/{name}", operator)[0] in (400, 404), name
        assert status(machine.server_port, "/metrics") == 200


@pytest.mark.parametrize("proxy", ["caddy", "nginx"])
def test_a_restart_behind_a_proxy(machine: Machine, proxy: str) -> None:
    """The upgrade of the page, while callers rank."""
    answered, stop = Counter[int](), threading.Event()

    def call() -> None:
        while not stop.is_set():
            answered[ask(machine, "POST", "/rank", machine.keys[0], RANK)[0]] += 1
            time.sleep(0.1)

    with behind(machine, proxy):
        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        time.sleep(0.5)
        machine.paste(6)
        machine.stop()
        machine.start()
        machine.wait()
        time.sleep(0.5)
        stop.set()
        for caller in callers:
            caller.join()
    assert answered[200] > 10
    assert set(answered) <= {200, 502 if proxy == "nginx" else 200}
    assert os.readlink(machine.root / "opt/polyrank") == "polyrank-0.2.0"


def test_a_backup_is_restored_in_the_place_of_a_damaged_store(machine: Machine) -> None:
    [cron] = fenced(machine.section(4), "cron")
    _, line = cron.splitlines()
    *_, user, command = line.split(None, 6)[:7]
    assert user == "polyrank"
    subprocess.run(["sh", "-c", command.replace("\\%", "%")], check=True)
    today = datetime.now().strftime("%a")
    assert [each.name for each in (machine.root / "var/backups/polyrank").iterdir()] == [f"{today}.tar.zst"]
    machine.stop()
    machine.page = machine.page.replace("/Mon.tar.zst", f"/{today}.tar.zst")
    machine.paste(4)
    machine.start()
    machine.wait()


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
    assert f"127.0.0.1:{machine.server_port}" in rules
    assert f"127.0.0.1:{machine.alerts_port}" in rules
    with HTTPServer(("127.0.0.1", machine.alerts_port), Alerts) as server:
        threading.Thread(target=server.serve_forever).start()
        machine.paste(5, 1)
        server.shutdown()
    assert Alerts.told == [{"alertname": "PolyrankDown", "severity": "page", "instance": "trial"}]
