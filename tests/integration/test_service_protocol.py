"""Malformed and hostile HTTP in raw bytes: what is answered, whether the connection goes on, and at what cost."""

import json
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO

import pytest
from bad_inputs import ASK, BOUND, HEAD, resident_bytes, serve_words
from served import Served
from waiting import until

from polyrank.service.http.plumbing import middleware
from polyrank.service.process import connections
from polyrank.service.process.connections import CHUNKS, HEAD_BYTES, HEAD_LINES

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(ASK), ASK)
LENGTH = b"Content-Length: %d\r\n" % len(ASK)
TOO_LONG = b"%x\r\n" % (2 * BOUND) + b"a" * 2 * BOUND + b"\r\n"
PARAMETERS = b"GET /index/candidates?" + b"&".join(b"%d=" % n for n in range(1000, 6200)) + b" HTTP/1.1"
LINES = b"\n" * 2 * HEAD_LINES + ASK
LONG = b"Content-Length: %d\r\n" % len(LINES)
HOST = b"Host: localhost\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
# One exchange may take so long, and the process may grow by so much; the machine may be busy.
SECONDS = 8.0
GROWTH = 16 << 20


@dataclass(frozen=True)
class Exchange:
    """Packets for a connection, the statuses of the answers, and whether the server ends the connection then."""

    name: str
    packets: tuple[bytes, ...]
    statuses: tuple[int, ...]
    ends: bool = False


def get(fields: bytes = HOST, line: bytes = b"GET /livez HTTP/1.1") -> bytes:
    return line + b"\r\n" + fields + b"\r\n"


def field(line: bytes) -> bytes:
    return get(HOST + line + b"\r\n")


def post(fields: bytes, body: bytes = ASK) -> bytes:
    return HEAD + fields + b"\r\n" + body


def as_called(host: bytes, origin: bytes, version: bytes = b"1.1") -> bytes:
    """A ranking under a line that names the host, for a page of an origin."""
    head = HEAD.replace(HOST, host).replace(b"HTTP/1.1", b"HTTP/" + version)
    return head + b"Origin: " + origin + b"\r\n" + LENGTH + b"\r\n" + ASK


def goes_on(name: str, sent: bytes | tuple[bytes, ...], *statuses: int) -> Exchange:
    return Exchange(name, sent if isinstance(sent, tuple) else (sent,), statuses)


def ends(name: str, sent: bytes | tuple[bytes, ...], *statuses: int) -> Exchange:
    return replace(goes_on(name, sent, *statuses), ends=True)


def cut(sent: bytes, before_end: int) -> tuple[bytes, bytes]:
    """Cut a request so many bytes before the end of its head."""
    at = sent.index(b"\r\n\r\n") + 4 - before_end
    return sent[:at], sent[at:]


UPGRADES = [
    goes_on("h2c with a length", post(UPGRADE + LENGTH), 200),
    goes_on("h2c in chunks", HEAD + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n", 200),
    goes_on("h2c, a request as body", post(UPGRADE + b"Content-Length: %d\r\n" % len(LIVEZ), LIVEZ), 400),
    goes_on("several protocols", post(b"Connection: upgrade\r\nUpgrade: foo/2, h2c\r\n" + LENGTH), 200),
    goes_on("websocket", field(b"Connection: Upgrade\r\nUpgrade: websocket"), 200),
    goes_on("an upgrade that Connection lacks", field(b"Upgrade: h2c"), 200),
    goes_on("Connection: upgrade to nothing", field(b"Connection: upgrade"), 200),
    ends("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
]
NO_HTTP = [
    ends("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ends("SSH", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400),
    ends("words", b"hello\r\n\r\n", 400),
    ends("zeros", b"\x00" * 100, 400),
    ends("HTTP/0.9", b"GET /\r\n\r\n", 400),
    ends("HTTP/9.9", get(line=b"GET /livez HTTP/9.9"), 400),
    ends("HTTP/1.2", get(line=b"GET /livez HTTP/1.2"), 400),
    ends("http/1.1", get(line=b"GET /livez http/1.1"), 400),
    ends("two spaces", get(line=b"GET  /livez HTTP/1.1"), 400),
    ends("a tab", get(line=b"GET\t/livez HTTP/1.1"), 400),
    ends("a space in front", b" " + LIVEZ, 400),
    ends("no path", get(line=b"GET HTTP/1.1"), 400),
    ends("a NUL in the path", get(line=b"GET /\x00 HTTP/1.1"), 400),
    ends("a path that is no ASCII", get(line=b"GET /\xe4 HTTP/1.1"), 400),
    ends("a method with a bracket", get(line=b"G(T /livez HTTP/1.1"), 400),
]
FIELDS = [
    ends("a NUL", field(b"X-A: a\x00b"), 400),
    ends("a bare CR", field(b"X-A: a\rX-B: b"), 400),
    ends("a space before the colon", field(b"X-A : a"), 400),
    ends("no colon", field(b"X-A"), 400),
    ends("no name", field(b": a"), 400),
    ends("a name with a bracket", field(b"X(A): a"), 400),
    ends("a fold at the start", get(b" Host: localhost\r\n"), 400),
    goes_on("a fold", field(b"X-A: a\r\n b"), 200),
    goes_on("bare LF", LIVEZ.replace(b"\r\n", b"\n"), 200),
    goes_on("Latin-1", field(b"X-A: \xe4"), 200),
    goes_on("an expectation", field(b"Expect: nothing"), 200),
    goes_on("a range", field(b"Range: bytes=0-1"), 200),
    goes_on("just small enough", field(b"X-A: " + b"a" * (HEAD_BYTES - 200)), 200),
    ends("a long path", get(line=b"GET /" + b"a" * 40_000 + b" HTTP/1.1"), 431),
    ends("a long value", field(b"X-A: " + b"a" * 200_000), 431),
    ends("an endless value", LIVEZ[:-2] + b"X-A: " + b"a" * 200_000, 431),
    ends("many fields", field(b"X-A: a\r\n" * HEAD_LINES), 431),
    ends("many empty fields", field(b"a:\r\n" * 8_000), 431),
    ends("many fields behind a good request", LIVEZ + get(HOST + b"a:\r\n" * 6_000), 200, 431),
    ends("many parameters", get(line=b"GET /livez?" + b"a&" * HEAD_LINES + b"a HTTP/1.1"), 431),
    ends("parameters that would be named one by one", get(line=PARAMETERS), 431),
    goes_on("as many parameters as may be", get(line=b"GET /livez?" + b"a&" * (HEAD_LINES - 1) + b"a HTTP/1.1"), 200),
    goes_on("as many fields as may be", get(HOST + b"a:\r\n" * (HEAD_LINES - 1)), 200),
    goes_on("as many, and their end later", cut(get(HOST + b"a:\r\n" * (HEAD_LINES - 1)), 2), 200),
    *(goes_on(f"a body of many lines, cut {cut_at}", cut(post(LONG, LINES), cut_at), 200) for cut_at in range(5)),
    goes_on("a body of many lines after bare LF", post(LONG, LINES).replace(b"\r\n", b"\n"), 200),
]
HOSTS = [
    ends("no host", get(b""), 400),
    ends("two hosts", field(b"Host: localhost"), 400),
    goes_on("another host", get(b"Host: evil.example\r\n"), 421),
    goes_on("a host that begins well", get(b"Host: localhost.evil.example\r\n"), 421),
    goes_on("an address that is not bound", get(b"Host: 192.0.2.1\r\n"), 421),
    goes_on("a host after a user", get(b"Host: localhost@evil.example\r\n"), 421),
    goes_on("a broken address", get(b"Host: [::1\r\n"), 421),
    goes_on("an empty host", get(b"Host:\r\n"), 421),
    goes_on("a port without a host", get(b"Host: :80\r\n"), 421),
    goes_on("a dot", get(b"Host: .\r\n"), 421),
    goes_on("two dots at the end", get(b"Host: localhost..\r\n"), 421),
    goes_on("an address in hexadecimal", get(b"Host: 0x7f000001\r\n"), 421),
    goes_on("another host and its own origin", as_called(b"Host: evil.example\r\n", b"http://evil.example"), 421),
    goes_on("an empty host and no origin's name", as_called(b"Host: \r\n", b"null"), 421),
    goes_on("an empty host and an origin without one", as_called(b"Host: \r\n", b"http://"), 421),
    ends("HTTP/1.0 without a host, and no origin's name", as_called(b"", b"null", b"1.0"), 403),
    ends("HTTP/1.0 without a host, and an origin without one", as_called(b"", b"http://", b"1.0"), 403),
    ends("a ranking by HTTP/1.0 without a host", as_called(b"", b"", b"1.0").replace(b"Origin: \r\n", b""), 200),
    ends("HTTP/1.0 with two hosts", get(HOST + HOST, b"GET /livez HTTP/1.0"), 400),
    goes_on("another port", get(b"Host: LOCALHOST.:99\r\n"), 200),
    goes_on("IPv6", get(b"Host: [::1]:8000\r\n"), 200),
    goes_on("127.0.0.2", get(b"Host: 127.0.0.2\r\n"), 200),
    goes_on("another origin", post(b"Origin: https://evil.example\r\n" + LENGTH), 403),
    goes_on("no origin's name", post(b"Origin: null\r\n" + LENGTH), 403),
    goes_on("another origin reads", field(b"Origin: https://evil.example"), 200),
    goes_on("another site without an origin", post(b"Sec-Fetch-Site: cross-site\r\n" + LENGTH), 403),
    goes_on("a page of another port", post(b"Sec-Fetch-Site: same-site\r\n" + LENGTH), 403),
    goes_on("the user", post(b"Sec-Fetch-Site: none\r\n" + LENGTH), 200),
    goes_on("the own origin", post(b"Origin: http://localhost\r\n" + LENGTH), 200),
    goes_on("the own origin, the host in capitals", as_called(b"Host: LOCALHOST:99\r\n", b"http://localhost:99"), 200),
    goes_on("the own origin in IPv6", as_called(b"Host: [::1]:99\r\n", b"https://[::1]:99"), 200),
    goes_on("an app's origin", as_called(HOST, b"capacitor://localhost"), 403),
    goes_on("an origin without a scheme", as_called(HOST, b"localhost"), 403),
    goes_on(
        "an empty origin beside another site's page", post(b"Origin:\r\nSec-Fetch-Site: cross-site\r\n" + LENGTH), 403
    ),
    goes_on("the own name at another port", as_called(HOST, b"http://localhost:99"), 403),
    goes_on(
        "another origin with the own Referer", post(b"Origin: null\r\nReferer: http://localhost/\r\n" + LENGTH), 403
    ),
    goes_on("a site that no browser writes", post(b"Origin: null\r\nSec-Fetch-Site: Same-Origin\r\n" + LENGTH), 403),
    goes_on(
        "the own origin behind a proxy", post(b"Origin: https://a.b\r\nSec-Fetch-Site: same-origin\r\n" + LENGTH), 200
    ),
]
TARGETS = [
    goes_on("a whole URL", get(line=b"GET http://localhost/livez HTTP/1.1"), 404),
    goes_on("a whole URL of another host", get(b"Host: evil.example\r\n", b"GET http://localhost/livez HTTP/1.1"), 421),
    goes_on("an asterisk", get(line=b"OPTIONS * HTTP/1.1"), 404),
    goes_on("CONNECT", get(line=b"CONNECT localhost:80 HTTP/1.1"), 404),
    goes_on("a method that nobody knows", get(line=b"BREW /livez HTTP/1.1"), 405),
    goes_on("a method in lower case", get(line=b"get /livez HTTP/1.1"), 405),
    goes_on("an encoded NUL", get(line=b"GET /%00 HTTP/1.1"), 404),
    goes_on("half an escape", get(line=b"GET /livez%2 HTTP/1.1"), 404),
    goes_on("bytes that are no UTF-8", get(line=b"GET /%ff%fe HTTP/1.1"), 404),
    goes_on("upwards", get(line=b"GET /../../etc/passwd HTTP/1.1"), 404),
]
LENGTHS = [
    goes_on("twice the same length", post(LENGTH + LENGTH), 200),
    goes_on("a list of equal lengths", post(b"Content-Length: 16, 16\r\n"), 200),
    ends("two lengths", post(LENGTH + b"Content-Length: 3\r\n"), 400),
    ends("a list of lengths", post(b"Content-Length: 16, 3\r\n"), 400),
    ends("a length with a sign", post(b"Content-Length: +16\r\n"), 400),
    ends("a negative length", post(b"Content-Length: -1\r\n"), 400),
    ends("a length as power", post(b"Content-Length: 1e1\r\n"), 400),
    ends("a length in base 16", post(b"Content-Length: 0x10\r\n"), 400),
    ends("a length of 30 digits", post(b"Content-Length: " + b"9" * 30 + b"\r\n"), 400),
    ends("a length of 10 GB", post(b"Content-Length: 10000000000\r\n"), 413),
    ends("a length beside chunks", HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n", 400),
    ends("a coding that nobody knows", post(b"Transfer-Encoding: gzip\r\n"), 501),
    ends("chunks of chunks", post(b"Transfer-Encoding: chunked, chunked\r\n"), 501),
    ends("no coding", post(b"Transfer-Encoding: identity\r\n"), 501),
    ends("two codings", post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 501),
    ends("chunks in HTTP/1.0", CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNK + b"0\r\n\r\n", 400),
    goes_on("no body", post(b"Content-Length: 0\r\n", b""), 400),
    goes_on("what follows no body", post(b"Content-Length: 0\r\n", LIVEZ), 400, 200),
    goes_on("GET with a body", field(b"Content-Length: 3\r\n\r\nabc")[:-4], 200),
]
IN_CHUNKS = [
    goes_on("one byte each", CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in ASK) + b"0\r\n\r\n", 200),
    goes_on("an extension", CHUNKED + CHUNK.replace(b"\r\n", b";a=b\r\n", 1) + b"0\r\n\r\n", 200),
    goes_on("a trailer", CHUNKED + CHUNK + b"0\r\nX-A: a\r\n\r\n", 200),
    ends("a size that is none", CHUNKED + b"zz\r\nabc\r\n", 400),
    ends("a negative size", CHUNKED + b"-1\r\nabc\r\n", 400),
    ends("a size with its base", CHUNKED + b"0x10\r\nabc\r\n", 400),
    ends("a space before the size", CHUNKED + b" 3\r\nabc\r\n", 400),
    ends("a size of 21 digits", CHUNKED + b"f" * 21 + b"\r\nabc\r\n", 400),
    ends("a size that ends in LF", CHUNKED + b"3\nabc\r\n", 400),
    ends("more than the size", CHUNKED + b"3\r\nabcd\r\n", 400),
    ends("more than may be", CHUNKED + b"fffffff\r\n" + b"a" * 2 * BOUND, 413),
    ends("thousands", CHUNKED + b"1\r\na\r\n" * 2 * CHUNKS, 400),
    ends("a long extension", CHUNKED + b"3;" + b"a" * 100_000, 431),
    ends("a trailer that is none", CHUNKED + CHUNK + b"0\r\nX(A): a\r\n\r\n", 400),
    goes_on("as many trailers as may be", CHUNKED + CHUNK + b"0\r\n" + b"a:\r\n" * HEAD_LINES + b"\r\n", 200),
    ends("many trailers", CHUNKED + CHUNK + b"0\r\n" + b"a:\r\n" * (HEAD_LINES + 1) + b"\r\n", 431),
    ends("a malformed chunk after too many bytes", (CHUNKED + TOO_LONG, b"zz\r\n"), 413),
    ends("large trailers", CHUNKED + CHUNK + b"0\r\nX-A: " + b"a" * 100_000, 431),
]
CONNECTIONS = [
    goes_on("two at once", LIVEZ + LIVEZ, 200, 200),
    goes_on("three at once", LIVEZ + get(line=b"GET /nowhere HTTP/1.1") + post(LENGTH), 200, 404, 200),
    ends("a good one before a bad one", LIVEZ + b"hello\r\n\r\n", 200, 400),
    ends("HTTP/1.0", get(line=b"GET /livez HTTP/1.0"), 200),
    ends("HTTP/1.0 that wants to go on", field(b"Connection: keep-alive").replace(b"/1.1", b"/1.0"), 200),
    ends("HTTP/1.0 without a host", b"GET /livez HTTP/1.0\r\n\r\n", 200),
    ends("the last one", field(b"Connection: close"), 200),
    ends("one after the last one", field(b"Connection: close") + LIVEZ, 200),
    ends("much after the last one", post(b"Connection: close\r\n" + LENGTH) + LIVEZ * 1000, 200),
    goes_on("a connection of nonsense", field(b"Connection: , ,x"), 200),
    goes_on("one that waits for leave", post(b"Expect: 100-continue\r\n" + LENGTH), 100, 200),
    goes_on("one answered before its body", post(b"Content-Encoding: br\r\n" + LENGTH), 415),
]
EXCHANGES = [*UPGRADES, *NO_HTTP, *FIELDS, *HOSTS, *TARGETS, *LENGTHS, *IN_CHUNKS, *CONNECTIONS]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(middleware, "DRAIN_SECONDS", 0.1)


@contextmanager
def connected(server: Served, read_bytes: int | None = None) -> Iterator[socket.socket]:
    """A connection; `read_bytes` is how much the system takes for a client that does not read."""
    with socket.socket() as connection:
        if read_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", server.port))
        yield connection


def send(connection: socket.socket, *parts: bytes) -> None:
    """Send parts in packets of their own, as far as the server reads."""
    with suppress(OSError):
        for part in parts:
            connection.sendall(part)
            time.sleep(0.02 if len(parts) > 1 else 0)


def answer(reader: IO[bytes]) -> tuple[int, dict[str, str], bytes] | None:
    """Read the next answer: status, headers and body; None where the server has ended the connection."""
    line = reader.readline()
    if not line:
        return None
    headers = {}
    while line_of_one := reader.readline().decode().strip():
        name, _, value = line_of_one.partition(": ")
        headers[name.lower()] = value
    return int(line.split()[1]), headers, reader.read(int(headers.get("content-length", 0)))


def test_the_table_is_large() -> None:
    assert len({exchange.name for exchange in EXCHANGES}) == len(EXCHANGES) >= 60


def test_what_is_said_of_an_unknown_coding_is_whole(server: Served) -> None:
    with connected(server) as connection, connection.makefile("rb") as reader:
        send(connection, post(b"Transfer-Encoding: gzip\r\n"))
        said = answer(reader)
    assert said is not None
    assert b'"detail":"only one Transfer-Encoding: chunked is supported"' in said[2]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_an_exchange(server: Served, exchange: Exchange) -> None:
    held, began = resident_bytes(), time.monotonic()
    too_large = server.metric("rejected_total", reason="too_large")
    with connected(server) as connection, connection.makefile("rb") as reader:
        send(connection, *exchange.packets)
        for status in exchange.statuses:
            got = answer(reader)
            assert got is not None, f"ended before the answer {status}"
            assert got[0] == status, got
            if status >= 400:
                assert json.loads(got[2])["status"] == status
                assert (got[1]["content-type"], got[1]["x-content-type-options"]) == (
                    "application/problem+json",
                    "nosniff",
                )
        if exchange.ends:
            assert got[1].get("connection") == "close"
            assert answer(reader) is None
        else:
            send(connection, LIVEZ)
            after = answer(reader)
            assert after[0] == 200, "what followed was read as part of it"
    assert time.monotonic() - began < SECONDS
    assert resident_bytes() - held < GROWTH
    refused = sum(status in (413, 431) for status in exchange.statuses)
    assert server.metric("rejected_total", reason="too_large") == too_large + refused


def test_a_malformed_body_gets_no_second_answer(server: Served) -> None:
    with connected(server) as connection, connection.makefile("rb") as reader:
        send(connection, HEAD + b"Content-Encoding: br\r\nTransfer-Encoding: chunked\r\n\r\n")
        got = answer(reader)
        assert got[0] == 415
        send(connection, b"zz\r\n")
        assert answer(reader) is None


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_client_like_java_s(server: Served, framing: str) -> None:
    """The head and the body in packets of their own, as the HttpClient of JDK 17 sends them."""
    head = (
        b"POST /rank HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n%sHost: localhost:%d\r\n"
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
        b"User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n\r\n"
    )
    if framing == "length":
        parts = [head % (LENGTH, server.port), ASK]
    else:
        parts = [head % (b"Transfer-encoding: chunked\r\n", server.port), CHUNK, b"0\r\n\r\n"]
    with connected(server) as connection, connection.makefile("rb") as reader:
        for _ in range(2):
            send(connection, *parts)
            got = answer(reader)
            assert got[0] == 200
            assert json.loads(got[2])["results"]


def test_curl_that_offers_http_2(server: Served) -> None:
    if shutil.which("curl") is None:  # the same bytes
        with connected(server) as connection, connection.makefile("rb") as reader:
            send(connection, post(b"User-Agent: curl/7.88.1\r\nAccept: */*\r\n" + UPGRADE + LENGTH))
            got = answer(reader)
            assert got[0] == 200
        return
    command = ["curl", "--silent", "--noproxy", "*", "--http2", "--write-out", " %{http_code} %{http_version}"]
    command += ["--header", "Content-Type: application/json", "--data-binary", ASK.decode(), f"{server.url}/rank"]
    out = subprocess.run(command, capture_output=True, check=True, timeout=10, text=True).stdout
    body, status, version = out.rsplit(" ", 2)
    assert (status, version) == ("200", "1.1")
    assert json.loads(body)["results"]


def test_a_key_in_a_trailer_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": "a", "sha256": sha256(b"prk_a").hexdigest(), "scopes": ["rank"]}]}))
    file.chmod(0o600)
    with serve_words(tmp_path / "store", keys_file=file) as served, connected(served) as connection:
        send(connection, CHUNKED, CHUNK, b"0\r\nAuthorization: Bearer prk_a\r\n\r\n")
        with connection.makefile("rb") as reader:
            got = answer(reader)
            assert got[0] == 401


def flood(server: Served, sent: bytes, times: int, most_seconds: float, growth: int, callers: int = 1) -> None:
    """Send bytes again and again from several connections; others are answered meanwhile, and little is held."""

    def attack() -> None:
        with connected(server) as connection, suppress(OSError):
            for _ in range(times):
                connection.sendall(sent)

    held, slowest, began_at = resident_bytes(), 0.0, time.monotonic()
    attackers = [threading.Thread(target=attack) for _ in range(callers)]
    for attacker in attackers:
        attacker.start()
    while any(attacker.is_alive() for attacker in attackers) or not slowest:
        began = time.monotonic()
        assert server.client.get("/livez").status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    taken = time.monotonic() - began_at
    assert slowest < max(most_seconds, taken / 2), "nobody waits for all of it, however busy the machine is"
    assert resident_bytes() - held < growth


def test_megabytes_of_trailers_are_not_held(server: Served) -> None:
    with connected(server) as connection:
        send(connection, CHUNKED + CHUNK + b"0\r\n")
        held = resident_bytes()
        send(connection, *[b"X-A: " + b"a" * (1 << 20) + b"\r\n"] * 20)
        assert resident_bytes() - held < GROWTH
    assert server.client.get("/livez").status_code == 200


def test_megabytes_of_small_requests_hold_up_nobody(server: Served) -> None:
    flood(server, LIVEZ * 2000, times=10, most_seconds=1.0, growth=2 * GROWTH, callers=10)


def test_megabytes_of_small_chunks_hold_up_nobody(server: Served) -> None:
    flood(server, CHUNKED + b"1\r\na\r\n" * 40_000, times=5, most_seconds=1.0, growth=2 * GROWTH, callers=10)


def test_a_client_that_does_not_read_is_cut_off(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.5)
    before = server.metric("rejected_total", reason="unread")
    with connected(server, read_bytes=4096) as connection:
        send(connection, get(line=b"GET /openapi.json HTTP/1.1") * 60)
        until(lambda: server.metric("rejected_total", reason="unread") > before)


def test_clients_that_do_not_read_hold_up_no_other_that_pipelines(server: Served) -> None:
    with ExitStack() as stack:
        for _ in range(10):
            deaf = stack.enter_context(connected(server, read_bytes=4096))
            send(deaf, get(line=b"GET /openapi.json HTTP/1.1") * 60)
        connection = stack.enter_context(connected(server))
        send(connection, LIVEZ * 20)
        with connection.makefile("rb") as reader:
            for _ in range(20):
                got = answer(reader)
                assert got[0] == 200


def test_unread_answers_together_have_a_bound(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_BYTES", 100_000)
    before = server.metric("rejected_total", reason="unread")
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(connected(server, read_bytes=4096))
            send(connection, get(line=b"GET /openapi.json HTTP/1.1") * 60)
        until(lambda: server.metric("rejected_total", reason="unread") > before)


def test_a_client_that_reads_slowly_gets_its_answers(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.5)
    asked = 20
    size = len(server.client.get("/openapi.json").content)
    with connected(server, read_bytes=64 * 1024) as connection:
        send(connection, get(line=b"GET /openapi.json HTTP/1.1") * asked)
        received = 0
        while received < asked * size:
            piece = connection.recv(32 * 1024)
            assert piece, "cut off"
            received += len(piece)
            time.sleep(0.02)


def test_large_bodies_together_have_a_bound(server: Served) -> None:
    before = server.metric("rejected_total", reason="bodies")
    large = BOUND * 15 // 16
    with ExitStack() as stack:
        unfinished = [stack.enter_context(connected(server)) for _ in range(12)]
        for connection in unfinished:
            send(connection, HEAD + b"Content-Length: %d\r\n\r\n" % BOUND + b" " * large)
        until(lambda: server.metric("rejected_total", reason="bodies") > before)
        assert server.rank(context="a").status_code == 200, "small bodies need no room"
        refused = select.select(unfinished, [], [], 10)[0][0]  # the server reads them in an order of its own
        with refused.makefile("rb") as reader:
            got = answer(reader)
        assert (got[0], json.loads(got[2])["type"]) == (503, "urn:polyrank:problem:bodies-held")
        assert got[1]["retry-after"] == "1"
    padded = ASK + b" " * large
    until(lambda: len(server.raw(post(b"Content-Length: %d\r\n" % len(padded), padded))) > 1000)


def test_pages_of_named_origins_and_calls_of_named_hosts_are_answered(tmp_path: Path) -> None:
    ask = {"Content-Type": "application/json"}
    with serve_words(tmp_path, allowed_hosts="*.shop.example,api", cors_origins="https://shop.example") as served:

        def status(host: str, origin: str | None = None) -> int:
            headers = {**ask, "Host": host, **({"Origin": origin} if origin else {})}
            return served.client.post("/rank", content=ASK, headers=headers).status_code

        hosts = ("localhost", "api:8000", "rank.SHOP.example", "shop.example", "shop.example.evil", "xshop.example")
        assert [status(host) for host in hosts] == [200, 200, 200, 421, 421, 421]
        origins = ("https://shop.example", "http://api", "https://evil.example", "null")
        assert [status("api", origin) for origin in origins] == [200, 200, 403, 403]
        assert served.metric("rejected_total", reason="host") == 3
        assert served.metric("rejected_total", reason="origin") == 2


def test_where_any_host_will_do_an_empty_one_makes_no_origin_the_own(tmp_path: Path) -> None:
    with serve_words(tmp_path, allowed_hosts="*") as served:
        for origin in (b"null", b"http://", b"https://evil.example"):
            assert served.raw(as_called(b"Host: \r\n", origin)).startswith(b"HTTP/1.1 403"), origin
        assert served.raw(as_called(b"Host: a.example\r\n", b"https://a.example")).startswith(b"HTTP/1.1 200")


def test_a_refusal_names_the_setting(server: Served) -> None:
    told = server.client.get("/livez", headers={"Host": "evil.example"}).json()["detail"]
    assert "'evil.example'" in told
    assert "POLYRANK_ALLOWED_HOSTS" in told
    told = server.client.post("/index/rollback", headers={"Origin": "https://evil.example"}).json()["detail"]
    assert "'https://evil.example'" in told
    assert "POLYRANK_CORS_ORIGINS" in told


def test_a_server_on_every_address_is_called_by_every_address(tmp_path: Path) -> None:
    with serve_words(tmp_path, host="0.0.0.0") as served:
        hosts = ("192.0.2.1:8000", "[2001:db8::1]", "evil.example")
        assert [served.client.get("/livez", headers={"Host": host}).status_code for host in hosts] == [200, 200, 421]


def test_the_documentation_runs_nothing_but_its_own(server: Served) -> None:
    policy = server.client.get("/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in next(rule for rule in policy.split("; ") if rule.startswith("script-src"))
