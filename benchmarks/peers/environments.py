"""The virtual environments of the peers, each with its own pinned packages.

Each is made on first use. The pins are for Python 3.11 on Linux. They are installed without
resolving dependencies, because some packages declare dependencies that they do not need.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.load.drive import REPOSITORY

CACHE = REPOSITORY / "build" / "peers"
REQUIREMENTS = Path(__file__).parent / "requirements"


def python_of(name: str, cache: Path = CACHE) -> Path:
    """Return the interpreter of an environment; makes it if it is missing or its pins have changed."""
    folder, pins = cache / name, REQUIREMENTS / f"{name}.txt"
    done = folder / "requirements.txt"
    python = folder / "bin" / "python"
    if done.is_file() and done.read_bytes() == pins.read_bytes():
        return python
    print(f"installing {name} into {folder}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--requirement", pins], check=True)
    shutil.copy(pins, done)
    return python
