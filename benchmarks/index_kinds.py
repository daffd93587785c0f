"""Recall and latency of each kind of index on real replies and contexts. The rules of `--index auto` come from this.

    export OMP_NUM_THREADS=1
    python -m benchmarks.index_kinds kinds   --cache DIR --model MODEL --replies F [F...] --contexts F [F...]
    python -m benchmarks.index_kinds filters --cache DIR ...
    python -m benchmarks.index_kinds auto    --cache DIR ... --grow 131072

Replies and contexts are files of dialogues (`.jsonl[.gz|.zst]`). They are encoded once and kept in DIR, as
`replies.npy` (N, D) float16 and `codes.npy` (C, M, D) float32, with the indexes beside them.

`kinds` measures recall against the exact scan, and time, of the whole path that the service takes: search, union,
scoring. `--grow` makes a pool of so many rows: the first ones, or all of them and copies with noise. Recall says little
about copies; time says much. `filters` allows only a share of the rows and compares searching with a selector with
scoring every allowed row. `auto` predicts the times by which `--index auto` chooses, several times, and measures them
over the whole pool. Times are processor times of the process, so other work does not count; with one thread they
are latencies.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.timing import machine, processor_seconds
from numpy.typing import NDArray

import polyrank
from polyrank.index_builder.index.choice import IndexSpec, choose_index
from polyrank.index_builder.index.faiss_index import RETRIEVE_K, CandidateIndex
from polyrank.index_builder.index.measuring import Probe, Probes, time_searches
from polyrank.index_builder.index.retrieval import retrieve
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.search.scan import Query, Scan, prepare
from polyrank.model.search.topk import top_k
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import read_dialogues

CHUNK_TEXTS = 8192
NOISE = 0.3  # length of the noise that is added to a copy, itself a unit vector
FACTORIES = ("HNSW32", "IVF2048,SQ8", "OPQ48,IVF2048,PQ48", "OPQ96,IVF2048,PQ96")
EFFORTS = {"HNSW": ("efSearch", (32, 64, 128, 256, 512)), "IVF": ("nprobe", (8, 16, 32, 64, 128, 256))}
SHARES = (1.0, 0.1, 0.01, 0.001, 0.0001)
TIMED_CONTEXTS = 50
PREDICTIONS = 5

Matrix = NDArray[np.float16]
Codes = NDArray[np.float32]


def distinct_replies(files: list[Path]) -> list[str]:
    """Return the distinct replies of all files, in order of first appearance."""
    return list(dict.fromkeys(each.response.strip() for file in files for each in read_dialogues(file)))


def draw_conversations(files: list[Path], count: int, seed: int) -> list[Conversation]:
    """Draw about `count` contexts, as many of each file."""
    rng = np.random.default_rng(seed)
    conversations = []
    for file in files:
        dialogues = list(read_dialogues(file))
        chosen = rng.choice(len(dialogues), min(count // len(files), len(dialogues)), replace=False)
        conversations += [dialogues[at].conversation for at in np.sort(chosen)]
    return conversations


def embed_replies(ranker: polyrank.VectorRanker, files: list[Path]) -> Matrix:
    """Encode `distinct_replies`, (N, D)."""
    texts, chunks = distinct_replies(files), []
    for start in range(0, len(texts), CHUNK_TEXTS):
        tokens, _ = ranker.tokenize_candidates(texts[start : start + CHUNK_TEXTS])
        chunks.append(ranker.encode_candidates(tokens).astype(np.float16))
        print(f"encoded {start + len(tokens)} of {len(texts)} replies", flush=True)
    return np.concatenate(chunks)


def embed_contexts(ranker: polyrank.VectorRanker, files: list[Path], count: int, seed: int) -> Codes:
    """Encode what `draw_conversations` draws, (C, M, D)."""
    conversations = draw_conversations(files, count, seed)
    return np.stack(ranker.encode_contexts([ranker.tokenize_context(each)[0] for each in conversations]))


def encoded(arguments: argparse.Namespace) -> tuple[Matrix, Codes]:
    """Return vectors of replies and contexts, from the cache if it has them."""
    replies, codes = arguments.cache / "replies.npy", arguments.cache / "codes.npy"
    if not (replies.exists() and codes.exists()):
        arguments.cache.mkdir(parents=True, exist_ok=True)
        ranker = load_vector_ranker(arguments.model)
        np.save(codes, embed_contexts(ranker, arguments.contexts, arguments.count, arguments.seed))
        np.save(replies, embed_replies(ranker, arguments.replies))
    return np.load(replies), np.load(codes)


def grown(matrix: Matrix, size: int, rng: np.random.Generator) -> Matrix:
    """Return the first rows, or all rows and noisy copies of random ones; of unit length."""
    parts, missing = [matrix[:size]], size - len(matrix)
    while missing > 0:
        copies = matrix[rng.integers(0, len(matrix), min(missing, CHUNK_TEXTS))].astype(np.float32)
        noise = rng.standard_normal(copies.shape).astype(np.float32)
        copies += NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        parts.append((copies / np.linalg.norm(copies, axis=1, keepdims=True)).astype(np.float16))
        missing -= len(copies)
    return np.concatenate(parts)


def milliseconds(run: Callable[[Codes], object], contexts: Codes) -> str:
    """Return p50 and p99 of the processor time over the contexts."""
    seconds = [processor_seconds(partial(run, codes)) for codes in contexts]
    p50, p99 = np.percentile(seconds, (50, 99)) * 1000
    return f"p50 {p50:7.2f} ms  p99 {p99:7.2f} ms"


def kinds(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    probes = Probes(matrix, [Probe(codes) for codes in contexts], arguments.seed)
    scan, timed = prepare(matrix), contexts[:: len(contexts) // TIMED_CONTEXTS]
    told = milliseconds(lambda codes: scan.top_k([Query(codes, 10)]), timed)
    print(f"{'scan':20} N {len(matrix):8}  {told}", flush=True)
    for factory in arguments.factories:
        index, seconds, size = built(matrix, factory, arguments.cache)
        print(f"{factory:20} N {len(matrix):8}  built in {seconds:.0f} s  {size / len(matrix):.0f} bytes a row")
        name, efforts = next((each for start, each in EFFORTS.items() if start in factory), ("", (0,)))
        for effort in efforts:
            harder = index.with_params({name: effort} if name else {})
            found = probes.measure(harder)
            told = milliseconds(partial(searched, matrix, harder), timed)
            recall = f"recall@10 {found.at_10:.4f}  @100 {found.at_100:.4f}"
            print(f"{factory:20} N {len(matrix):8}  {name} {effort:4}  {recall}  {told}", flush=True)


def filters(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    rng, scan = np.random.default_rng(arguments.seed), prepare(matrix)
    contexts = contexts[:: len(contexts) // TIMED_CONTEXTS]
    indexes = {factory: built(matrix, factory, arguments.cache)[0] for factory in arguments.factories}
    for share in SHARES:
        only = np.zeros(len(matrix), bool)
        only[rng.choice(len(matrix), max(1, round(share * len(matrix))), replace=False)] = True
        exact = [best.rows for best in scan.top_k([Query(codes, 10, only) for codes in contexts])]
        told = milliseconds(partial(matches, scan, only), contexts)
        print(f"share {share:6}  {'scan the matches':20} {told}", flush=True)
        for factory, index in indexes.items():
            found = [retrieve(index, codes, RETRIEVE_K, only=only).rows for codes in contexts]
            recall = np.mean([np.isin(best, rows).mean() for best, rows in zip(exact, found, strict=True)])
            told = milliseconds(partial(searched, matrix, index, only=only), contexts)
            print(f"share {share:6}  {factory:20} {told}  recall@10 {recall:.3f}", flush=True)


def auto(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    whole, (index, built_in, _) = prepare(matrix), built(matrix, "HNSW32", arguments.cache)
    ways = (lambda codes: whole.top_k([Query(codes, 10)]), partial(searched, matrix, index))
    taken = [[processor_seconds(partial(way, codes)) * 1000 for way in ways] for codes in contexts]  # in turns
    by_scan, by_graph = np.median(taken, axis=0)
    told = f"scan {by_scan:6.2f} ms  hnsw {by_graph:6.2f} ms  ratio {by_graph / by_scan:.2f}"
    print(f"{'whole':10} N {len(matrix):8}  {told}  built in {built_in:.0f} s", flush=True)
    for _ in range(PREDICTIONS):
        began = time.process_time()
        times = time_searches(matrix, list(contexts[:: len(contexts) // 12][:12]))
        seconds, kind = time.process_time() - began, choose_index("auto", len(matrix), matrix.shape[1], times).kind
        told = f"scan {times.exact_ms:6.2f} ms  hnsw {times.hnsw_ms:6.2f} ms  ratio {times.ratio:.2f}"
        print(f"{'predicted':10} N {len(matrix):8}  {told}  {kind}  in {seconds:.1f} s", flush=True)


def matches(scan: Scan, only: NDArray[np.bool_], codes: Codes) -> None:
    scan.top_k([Query(codes, 10, only)])


def searched(matrix: Matrix, index: CandidateIndex, codes: Codes, only: NDArray[np.bool_] | None = None) -> None:
    rows = retrieve(index, codes, RETRIEVE_K, only=only).rows
    top_k(matrix[rows], codes, 10)


def built(matrix: Matrix, factory: str, cache: Path) -> tuple[CandidateIndex, float, int]:
    """Return the index, from the cache if it is there; the seconds of building it, or 0; the bytes of its file."""
    spec, file = IndexSpec("custom", factory), cache / f"{factory}-{len(matrix)}.faiss"
    began, seconds = time.process_time(), 0.0
    if not file.exists():
        CandidateIndex.build(spec, matrix).save(file)
        seconds = time.process_time() - began
    return CandidateIndex.load(file, spec), seconds, file.stat().st_size


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `encoded`."""
    parser.add_argument("--model", default="checkpoints/chat-poly")
    parser.add_argument("--replies", type=Path, nargs="+", default=[])
    parser.add_argument("--contexts", type=Path, nargs="+", default=[])
    parser.add_argument("--cache", type=Path, required=True, help="where vectors are kept")
    parser.add_argument("--count", type=int, default=500, help="contexts")
    parser.add_argument("--seed", type=int, default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kinds", "filters", "auto"))
    add_options(parser)
    parser.add_argument("--grow", type=int, help="rows; default: the replies there are")
    parser.add_argument("--factories", nargs="+", default=FACTORIES)
    arguments = parser.parse_args()
    matrix, contexts = encoded(arguments)
    matrix = grown(matrix, arguments.grow or len(matrix), np.random.default_rng(arguments.seed))
    print(machine(), f"seed {arguments.seed}, N {len(matrix)}, contexts {contexts.shape}")
    {"kinds": kinds, "filters": filters, "auto": auto}[arguments.what](matrix, contexts, arguments)


if __name__ == "__main__":
    main()
