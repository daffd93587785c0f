"""`python .ci/install.py ARGUMENTS`: pip install into this Python's environment, telling now and then how far it is.

pip itself tells everything or nothing. Its errors are shown as they are. An environment without pip gets Python's own.
"""

import importlib.util
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable
from pathlib import Path

SECONDS = 3.0
_FOUND, _LOADS, _INSTALLS = "Collecting ", "Downloading ", "Installing collected packages: "


class Install:
    """How far pip is."""

    def __init__(self) -> None:
        self._began, self._did = time.monotonic(), "is set up"
        self._found = self._wanted = self._before = 0

    def follow(self, lines: Iterable[str]) -> None:
        """Read what pip says to its end."""
        self._did = "looks for packages"
        for line in map(str.strip, lines):
            if line.startswith(_FOUND):
                self._found += 1
                self._did = f"looks for {line.removeprefix(_FOUND).split()[0]} (package {self._found})"
            elif line.startswith(_LOADS):
                self._did = f"downloads {line.removeprefix(_LOADS)}"
            elif line.startswith(_INSTALLS):
                self._before, self._wanted = _installed(), line.count(",") + 1

    def line(self) -> str:
        """Say how far it is."""
        begun = max(1, _installed() - self._before)
        did = f"installs package {begun} of {self._wanted}" if self._wanted else self._did
        return f"pip {did}: {time.monotonic() - self._began:.0f} s"


def _installed() -> int:
    return len(list(Path(sysconfig.get_path("purelib")).glob("*.dist-info")))


def main() -> int:
    """Install; returns pip's exit status."""
    install, ended = Install(), threading.Event()

    def tell() -> None:
        while not ended.wait(SECONDS):
            print(install.line(), file=sys.stderr, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    if importlib.util.find_spec("pip") is None:
        subprocess.run([sys.executable, "-m", "ensurepip", "--default-pip"], stdout=subprocess.DEVNULL, check=True)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    pip = subprocess.Popen([*command, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    assert pip.stdout is not None, "opened as a pipe"
    install.follow(pip.stdout)
    status = pip.wait()
    ended.set()
    return status


if __name__ == "__main__":
    sys.exit(main())
