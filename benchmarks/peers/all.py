"""Run all comparisons, one after another, and write what they found into docs/measurements/peers.md.

python -m benchmarks.peers.all [--data F] [--pool F [F...]] [--rounds 5] [--cache DIR]
"""

import subprocess
import sys

from benchmarks.load.drive import REPOSITORY
from benchmarks.peers.compare import parser_of
from benchmarks.peers.report import PARTS


def main() -> int:
    options = parser_of(__doc__).parse_args()
    for name in PARTS:
        command = [sys.executable, "-m", f"benchmarks.peers.{name}", *sys.argv[1:]]
        subprocess.run(command, check=True, cwd=REPOSITORY)
    report = [sys.executable, "-m", "benchmarks.peers.report", "--results", options.output, "--cache", options.cache]
    return subprocess.run(report, cwd=REPOSITORY).returncode


if __name__ == "__main__":
    sys.exit(main())
