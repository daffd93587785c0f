"""Where a busy server's time goes, by function and thread: a flame graph.

    pip install py-spy
    python -m benchmarks.load.profile OUT.svg [--callers 16] [--seconds 30] [--pool POOL --data DIALOGUES] [--cache DIR]

Native functions, torch's and OpenVINO's, count to whoever called them. On some virtual machines py-spy takes threads
that wait for threads that work: stacks that end where ours wait (WAITING) are left out, and with them what uvloop
itself does. Orange is the model's code, blue the service's, grey what they call.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.load.drive import REPOSITORY, add_options, drive, mix_of, serving, store_of, warm
from benchmarks.load.generator import Phase
from benchmarks.peers.contest import limits
from benchmarks.peers.environments import CACHE, python_of

SAMPLES_PER_SECOND = 200
WAITING = ("_worker (concurrent/futures/thread.py", "Runner.run (", "wait (threading.py", "_wait (", "select (")
PLUMBING = ("Thread.", "_worker (", "_WorkItem.", "run (asyncio", "Runner.run (", "<module>")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--callers", type=int, default=16, help="at a time; default: 16")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"environment that draws; default: {CACHE}")
    add_options(parser)
    options = parser.parse_args()
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    mix = mix_of(options)
    with tempfile.TemporaryDirectory() as directory, store_of(options) as store, serving(store) as server:
        recorded, working = Path(directory, "recorded"), Path(directory, "working")
        warm(server, mix)
        command = [spy, "record", "--pid", str(server.pid), "--threads", "--rate", str(SAMPLES_PER_SECOND)]
        command += ["--duration", str(round(options.seconds)), "--format", "raw", "--output", str(recorded)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as spying:
            phase = Phase(options.seconds + 2, concurrency=options.callers)
            drive(server, mix.realistic(sent=0.0, fresh=0.0), [phase])
        if spying.returncode:
            raise SystemExit(f"py-spy ended with status {spying.returncode}; it may need root")
        working.write_text("\n".join(folded(recorded.read_text().splitlines())))
        figures = [
            python_of("figures", options.cache),
            "-m",
            "benchmarks.load.flame",
            working,
            options.output.resolve(),
        ]
        return subprocess.run(figures, cwd=REPOSITORY, env=limits(1)).returncode


def folded(lines: list[str]) -> list[str]:
    """Stacks of threads at work, without the frames that all threads have."""
    kept = []
    for line in lines:
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if frames and not any(each in frames[-1] for each in WAITING):
            own = [each for each in frames if not any(each.startswith(start) for start in PLUMBING)]
            kept.append(f"{';'.join([thread.partition(': ')[2] or thread, *own])} {count}")
    return kept


if __name__ == "__main__":
    sys.exit(main())
