"""The listening socket: bound at the start, and closed at the end without resetting a connection.

uvicorn only closes it, which resets the connections that wait to be accepted: under load requests are lost.
"""

import ctypes
import socket
import struct
import sys
from contextlib import suppress
from typing import Final

# Handshakes that have begun when new ones are refused end within so long; their connections are accepted.
HANDSHAKE_SECONDS: Final = 0.2

_SO_ATTACH_FILTER: Final = 26
# A classic BPF program over the TCP header: load the flags, drop what has SYN set, let everything else pass.
_DROP_SYN: Final = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens and does not block; OSError: the address is taken, or not one of this machine."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def inherited(descriptor: int) -> socket.socket:
    """Return the parent's listening socket, which does not block.

    All processes share this mode, and Python sets it for each copy of a socket as the original has it. If one process
    let it block, even for a moment, the event loop of another could stand in `accept` until somebody connects.
    """
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener


def refuse_new(listener: socket.socket) -> None:
    """Let no further handshake begin, in any process that shares the socket; those that have begun can end.

    Without this there could always be one more connection that nobody has accepted when the socket is closed. A client
    whose first packet is dropped sends it again after a second, and then the closed port refuses it.
    """
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN))
        filters = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(program))
        with suppress(OSError):  # without filters in the kernel a connection may be reset
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filters)
