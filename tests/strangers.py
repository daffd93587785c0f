"""A server on a socket whose answers have no end, no shape, or lead elsewhere."""

import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answering = Callable[[socket.socket, bytes, threading.Event], None]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Stranger:
    """A server on 127.0.0.1 that answers every request as it is told; `asked` are the heads of requests."""

    def __init__(self, answering: Answering) -> None:
        self.asked: list[bytes] = []
        self._answering, self._over = answering, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                if not (part := connection.recv(65536)):
                    return
                request += part
            self.asked.append(request)
            self._answering(connection, request, self._over)

    def end(self) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


@contextmanager
def stranger(answering: Answering) -> Iterator[Stranger]:
    server = Stranger(answering)
    try:
        yield server
    finally:
        server.end()


def whole(body: bytes, head: bytes = HEAD) -> Answering:
    def answering(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        # A client that is not told so may ask once more before it sees that the connection ends.
        connection.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return answering


def dripping(beginning: bytes, drop: bytes) -> Answering:
    """Sends a beginning, then drops, 20 a second, for a minute at most."""

    def answering(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        connection.sendall(beginning)
        for _ in range(1200):
            if over.wait(0.05):
                return
            connection.sendall(drop)

    return answering


def circle(connection: socket.socket, request: bytes, over: threading.Event) -> None:
    """Answers with a page of candidates; after the second one comes the first."""
    following = b"b" if b"after=a" in request else b"a"
    page = b'{"candidates": [], "next": "%s", "generation": "g", "revision": 0}' % following
    whole(page)(connection, request, over)


def folded() -> bytes:
    """A MiB of gzip that unfolds to a GiB."""
    folding = zlib.compressobj(wbits=31)
    first, second = (folding.compress(bytes(1 << 20)) + folding.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + second * 1023
