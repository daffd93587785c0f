"""What a serving process asks of its C library."""

import ctypes
import os
import subprocess
import sys
import tempfile

import pytest

COUNT = """
import ctypes, sys, threading
from polyrank.service.process.server import share_arenas
if sys.argv[2] == "shared":
    share_arenas()
library = ctypes.CDLL(None)
library.malloc.restype, library.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
meeting = threading.Barrier(9)
def allocate():
    library.malloc(1000)
    meeting.wait()
    meeting.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for each in threads:
    each.start()
meeting.wait()
file = ctypes.c_void_p(library.fopen(sys.argv[1].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
meeting.wait()
"""


def heaps(shared: str, **variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-c", COUNT, file.name, shared]
        subprocess.run(command, env={**environment, **variables}, check=True)
        return file.read().count(b"<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has arenas")
def test_threads_share_arenas_unless_the_environment_says_how_many() -> None:
    assert heaps("alone") > 3
    assert heaps("shared") == 2
    assert heaps("shared", MALLOC_ARENA_MAX="3") == 3
    assert heaps("shared", GLIBC_TUNABLES="glibc.malloc.arena_max=3") == 3
