"""Between a client and its Redis, to be slow or wrong on demand."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


class RedisProxy:
    """Hands bytes on in both directions until it is closed; safe to change while it does.

    Args:
        url: of the Redis, over TCP.

    Attributes:
        url: to be used instead.
        delay: seconds before each piece of an answer.
        says: what is answered to everything, without asking Redis; None: what Redis says.
        cuts: whether answers break off in the middle, with the connection.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._redis = parts.hostname or "", parts.port or 6379
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.delay, self.cuts = 0.0, False
        self.says: bytes | None = None
        self._open: set[socket.socket] = set()
        self._thread(self._accept)

    def refuse(self) -> None:
        """Take no connections, as if nothing listened there, until `listen`."""
        self.close()

    def listen(self) -> None:
        """Take connections again, at the same address."""
        self._listener = socket.create_server(("127.0.0.1", urlsplit(self.url).port or 0))
        self._thread(self._accept)

    def drop(self) -> None:
        """End the connections that there are."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _thread(self, work: Callable[..., object], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                try:
                    redis = socket.create_connection(self._redis)
                except OSError:
                    client.close()
                    continue
                self._open |= {client, redis}
                self._thread(self._ask, client, redis)
                self._thread(self._answer, redis, client)

    def _ask(self, client: socket.socket, redis: socket.socket) -> None:
        with suppress(OSError), client, redis:
            while asked := client.recv(65536):
                if self.says is None:
                    redis.sendall(asked)
                else:
                    client.sendall(self.says)

    def _answer(self, redis: socket.socket, client: socket.socket) -> None:
        with suppress(OSError), client, redis:
            while answer := redis.recv(65536):
                time.sleep(self.delay)
                if self.cuts:
                    client.sendall(answer[: len(answer) // 2])
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)

    def close(self) -> None:
        """Close every connection, and take no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
