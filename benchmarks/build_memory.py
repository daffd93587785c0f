"""How much memory and time a build needs as the pool grows. A hash takes the place of the model.

    python -m benchmarks.build_memory [--sizes 100000 1000000] [--index exact] [--dim 64] [--words] [--pool POOL]
        [--json]

With `--words` the model counts words. The candidates are the first ones of POOL (JSON lines), or made up; each of those
has two words of its own. Each size is built by a process of its own. Its anonymous memory (RssAnon: what the kernel
cannot drop or write back to a file) is read every 5 ms. "base" is the memory before the build begins, with libraries
loaded. "growth" is how much the peak grows from one size to the next, for each candidate. An index of FAISS is held in
memory, and its file has the same size.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import shake_128
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.names import KINDS
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.config import LexicalConfig, ModelConfig
from polyrank.model.representations import LateRows, Representations

MIB = 1 << 20


class HashEncoder:
    """Takes the hash of a text as its vector."""

    name, architecture, fingerprint = "hash", "bi", "0123456789abcdef" * 4
    backend, precision, rounding = "none", "float32", "float32"
    late_rows: LateRows | None = None

    def __init__(self, dim: int, counts_words: bool) -> None:
        self.dim, self.counts_words = dim, counts_words

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        return [list(text.encode()) for text in texts], 0

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        drawn = b"".join(shake_128(bytes(each)).digest(self.dim) for each in candidates)
        vectors = np.frombuffer(drawn, np.int8).reshape(-1, self.dim).astype(np.float32)
        return Representations(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def save(self, directory: Path) -> None:
        directory.mkdir()
        config = ModelConfig(
            architecture=self.architecture,
            base_name=self.name,
            evidence=LexicalConfig(weights={"last": 1.0}) if self.counts_words else None,
        )
        (directory / "polyrank.json").write_text(json.dumps(config.to_json()))


class Watch:
    """Records the largest RssAnon of each stage of the build, in bytes."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._stage = "base"

    def progress(self, stage: str, _done: int, _total: int | None) -> None:
        self._stage = stage

    def look(self) -> None:
        with open("/proc/self/status") as file:
            kib = next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
        stage = self._stage
        self.peaks[stage] = max(self.peaks.get(stage, 0), kib << 10)

    @contextmanager
    def looking(self) -> Iterator[None]:
        ended = threading.Event()

        def look_until_the_end() -> None:
            while not ended.wait(0.005):
                self.look()

        self.look()
        thread = threading.Thread(target=look_until_the_end)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def write_pool(path: Path, count: int, source: Path | None) -> None:
    with path.open("w") as file:
        if source is not None:
            with source.open() as lines:
                file.writelines(islice(lines, count))
            return
        for i in range(count):
            text = f"the answer to question {i} is what was said about {i * 7919 % count} before"
            file.write(f'{{"id": "candidate-{i}", "text": "{text}", "metadata": {{"topic": {i % 97}}}}}\n')


def measure(pool: Path, root: Path, index: str, dim: int, counts_words: bool) -> dict[str, Any]:
    watch, options = Watch(), BuildOptions(index=index, max_rejected=1.0)
    with watch.looking():
        model = HashEncoder(dim, counts_words)
        built = build(model, read_pool([pool], root), root, options, progress=watch.progress)
    store = GenerationStore(root)
    path = store.path(built.generation)
    faiss_file = path / "index.faiss"
    return {
        "candidates": built.count,
        "seconds": round(built.seconds, 1),
        "peak_bytes": max(watch.peaks.values()),
        "peak_bytes_by_stage": watch.peaks,
        "words_seconds": round(store.manifest(built.generation).build.seconds.get("words", 0.0), 2),
        "words_bytes": sum(each.stat().st_size for each in path.glob("words/*")),
        "index_bytes": faiss_file.stat().st_size if faiss_file.exists() else 0,
        "generation_bytes": sum(each.stat().st_size for each in path.rglob("*") if each.is_file()),
    }


def in_a_process(size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        write_pool(Path(directory) / "pool.jsonl", size, arguments.pool)
        command = [sys.executable, __file__, "--index", arguments.index, "--dim", str(arguments.dim)]
        command += ["--words"] if arguments.words else []
        done = subprocess.run([*command, "--one", directory], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--index", default="exact", choices=KINDS)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--words", action="store_true", help="let the model count words")
    parser.add_argument("--pool", type=Path, help="JSON lines; default: texts that are made up")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        pool, given = arguments.one / "pool.jsonl", (arguments.index, arguments.dim, arguments.words)
        print(json.dumps(measure(pool, arguments.one, *given)))
        return
    from benchmarks.timing import machine  # torch: not in the processes that are measured

    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        row = in_a_process(size, arguments)
        if rows:
            grown = row["peak_bytes"] - rows[-1]["peak_bytes"]
            row["growth_bytes_a_candidate"] = round(grown / (row["candidates"] - rows[-1]["candidates"]), 2)
        rows.append(row)
    if arguments.json:
        print(json.dumps({"index": arguments.index, "dim": arguments.dim, "machine": machine(), "rows": rows}))
    else:
        print(f"{machine()}, index {arguments.index}, D = {arguments.dim}")
        print_table(rows)


def print_table(rows: list[dict[str, Any]]) -> None:
    print("candidates  seconds  base MiB  peak MiB  words s  words MiB  index MiB  generation MiB  growth, bytes each")
    for row in rows:
        base, peak = row["peak_bytes_by_stage"]["base"] / MIB, row["peak_bytes"] / MIB
        print(
            f"{row['candidates']:10}  {row['seconds']:7}  {base:8.1f}  {peak:8.1f}  {row['words_seconds']:7}  "
            f"{row['words_bytes'] / MIB:9.2f}  {row['index_bytes'] / MIB:9.1f}  "
            f"{row['generation_bytes'] / MIB:14.1f}  {row.get('growth_bytes_a_candidate', '')}"
        )


if __name__ == "__main__":
    main()
