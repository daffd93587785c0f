"""`python .ci/install.py ARGUMENTS`: pip install into this Python's environment, telling now and then how far it is.

pip itself tells everything or nothing. Its errors are shown as they are.
"""

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
        self._began, self._did = time.monotonic(), "looks for packages"
        self._found = self._wanted = 0
        self._before = _installed()

    def follow(self, lines: Iterable[str]) -> None:
        """Read what pip says to its end."""
        for line in map(str.strip, lines):
            if line.startswith(_FOUND):
                self._found += 1
                self._did = f"looks for {line.removeprefix(_FOUND).split()[0]} (package {self._found})"
            elif line.startswith(_LOADS):
                self._did = f"downloads {line.removeprefix(_LOADS)}"
            elif line.startswith(_INSTALLS):
                self._wanted = line.count(",") + 1

    def line(self) -> str:
        """Say how far it is."""
        did = f"has installed {_installed() - self._before} of {self._wanted} packages" if self._wanted else self._did
        return f"pip {did}: {time.monotonic() - self._began:.0f} s"


def _installed() -> int:
    return len(list(Path(sysconfig.get_path("purelib")).glob("*.dist-info")))


def main() -> int:
    """Install; returns pip's exit status."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    pip = subprocess.Popen([*command, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    assert pip.stdout is not None, "opened as a pipe"
    install, ended = Install(), threading.Event()

    def tell() -> None:
        while not ended.wait(SECONDS):
            print(install.line(), file=sys.stderr, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    install.follow(pip.stdout)
    status = pip.wait()
    ended.set()
    return status


if __name__ == "__main__":
    sys.exit(main())
