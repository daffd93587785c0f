"""The listening socket ends without resetting anybody."""

import os
import socket

import pytest

from polyrank.service.process.listening import bind, inherited, refuse_new


def test_connections_that_have_begun_are_accepted_and_no_other_begins() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as begun:
        refuse_new(listener)
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), timeout=0.3)
        accepted, _ = listener.accept()
        with accepted:
            begun.sendall(b"still")
            assert accepted.recv(5) == b"still"
            address = listener.getsockname()
            listener.close()
            accepted.sendall(b"here")
            assert begun.recv(4) == b"here"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=3)


def test_a_port_that_is_taken_is_an_error() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])


def test_no_process_lets_the_socket_of_all_block() -> None:
    with bind("127.0.0.1", 0) as listener, inherited(os.dup(listener.fileno())) as own, own.dup():
        assert not os.get_blocking(listener.fileno())
