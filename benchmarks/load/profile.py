"""Where a busy server's time goes, by function and thread: a flame graph.

    pip install py-spy
    python -m benchmarks.load.profile OUT.svg [--callers 16] [--seconds 30] [--pool POOL --data DIALOGUES]

Native functions, torch's and OpenVINO's, count to whoever called them. On some virtual machines py-spy takes threads
that wait for threads that work: those show as `_worker` and `Runner.run` alone, and are to be left out of account.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.load.drive import add_options, drive, mix_of, serving, store_of, warm
from benchmarks.load.generator import Phase

SAMPLES_PER_SECOND = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--callers", type=int, default=16, help="at a time; default: 16")
    add_options(parser)
    options = parser.parse_args()
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    mix = mix_of(options)
    with store_of(options) as store, serving(store) as server:
        warm(server, mix)
        command = [spy, "record", "--pid", str(server.pid), "--threads", "--rate", str(SAMPLES_PER_SECOND)]
        command += ["--duration", str(round(options.seconds)), "--output", str(options.output)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as spying:
            phase = Phase(options.seconds + 2, concurrency=options.callers)
            drive(server, mix.realistic(sent=0.0, fresh=0.0), [phase])
        return spying.returncode


if __name__ == "__main__":
    sys.exit(main())
