"""A flame graph of a busy server: where its time goes, by function and thread.

    pip install py-spy
    python -m benchmarks.load.profile OUT.svg [--callers 16] [--seconds 30] [--pool POOL --data DIALOGUES] [--cache DIR]

Native functions of torch and OpenVINO count for their callers. py-spy tells how the time of a thread divides, and the
system how much processor time each thread had: py-spy takes threads that wait for a core to be busy, and on some
virtual machines also those that wait for work. Stacks that end in one of our waits (WAITING) are left out. Orange is
the model's code, blue the service's, green the builder's, grey other libraries.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.load.drive import REPOSITORY, add_options, drive, mix_of, serving, store_of, warm
from benchmarks.load.generator import Phase
from benchmarks.load.threads import spent, spy
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
    recorder, mix = spy(), mix_of(options)
    with tempfile.TemporaryDirectory() as directory, store_of(options) as store, serving(store) as server:
        recorded, working = Path(directory, "recorded"), Path(directory, "working")
        warm(server, mix)
        command = [recorder, "record", "--pid", str(server.pid), "--threads", "--rate", str(SAMPLES_PER_SECOND)]
        command += ["--duration", str(round(options.seconds)), "--format", "raw", "--output", str(recorded)]
        before = spent(server.pid)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as spying:
            phase = Phase(options.seconds + 2, concurrency=options.callers)
            drive(server, mix.realistic(sent=0.0, fresh=0.0), [phase])
        if spying.returncode:
            raise SystemExit(f"py-spy ended with status {spying.returncode}; it may need root")
        used = {thread: seconds - before.get(thread, 0.0) for thread, seconds in spent(server.pid).items()}
        working.write_text("\n".join(folded(recorded.read_text().splitlines(), used)))
        figures = [
            python_of("figures", options.cache),
            "-m",
            "benchmarks.load.flame",
            working,
            options.output.resolve(),
        ]
        return subprocess.run(figures, cwd=REPOSITORY, env=limits(1)).returncode


def folded(lines: list[str], used: dict[int, float]) -> list[str]:
    """Return the stacks of working threads, without the frames that all threads share, in processor milliseconds."""
    kept: Counter[tuple[int, str]] = Counter()
    for line in lines:
        stack, _, took = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if frames and not any(each in frames[-1] for each in WAITING):
            number, _, name = thread.removeprefix("thread (").partition(")")
            own = [each for each in frames if not any(each.startswith(start) for start in PLUMBING)]
            kept[int(number), ";".join([name.removeprefix(": ") or "nameless", *own])] += int(took)
    samples: Counter[int] = Counter()
    for (own_number, _), count in kept.items():
        samples[own_number] += count
    return [
        f"{stack} {round(1000 * used.get(number, 0.0) * count / samples[number])}"
        for (number, stack), count in kept.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
