"""A proxy between a client and its Redis that can be made slow or wrong."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


class RedisProxy:
    """Forwards bytes in both directions until it is closed. Its attributes may be changed at any time.

    Args:
        url: URL of the Redis, over TCP.

    Attributes:
        url: URL of the proxy.
        delay: seconds to wait before each piece of an answer.
        says: answer to everything without asking Redis; None: forward the answer of Redis.
        cuts: whether to cut answers in the middle and close the connection.
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
        """Refuse connections, as if nothing listened there, until `listen`."""
        self.close()

    def listen(self) -> None:
        """Accept connections again, at the same address."""
        self._listener = socket.create_server(("127.0.0.1", urlsplit(self.url).port or 0))
        self._thread(self._accept)

    def drop(self) -> None:
        """Close all open connections."""
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
        """Close all connections, and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
