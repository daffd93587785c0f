"""Where scanning the matrix stops being cheaper than HNSW at recall 0.95: the boundary of `--index auto`.

    python benchmarks/scan_or_hnsw.py --model MODEL --pool F [F...] --contexts F [--codes 64] [--sizes 10000 31000 ...]

Real candidate embeddings and real contexts. Where the pool is smaller than a size, rows are added that lie between two
real ones (a random convex combination, scaled to unit length), which keeps them in the region that real texts occupy.
The context vectors of M codes are the last M token states of the model (a poly-encoder with `context_vectors="last"`),
since an untrained model has no learnt codes. Recall@10 is of the whole path that the service takes (search with
`retrieve_k` rows a code, union, re-scoring) against the exact scan; `depth` below 200: what shorter lists would cost.
"""

import argparse
import time
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import model
from index_builder.faiss_index import CandidateIndex
from index_builder.index_choice import choose_index
from index_builder.pool import Candidate, read_pool
from index_builder.retrieval import union
from model.checkpoint import Ranker, load_late
from model.dialogues import read_dialogues
from model.topk import TopK, longest_row, top_k
from service.bench.timing import machine

RETRIEVE_K = 200
RECALL = 0.95
EF_SEARCH = (16, 32, 64, 128, 256, 512)
DEPTHS = (RETRIEVE_K, 50, 10)  # rows a code; the service takes the first


def embed_pool(ranker: model.LateRanker, pools: list[Path]) -> NDArray[np.float16]:
    texts = [row.text for row in read_pool(pools) if isinstance(row, Candidate)]
    return ranker.encode_candidates(ranker.tokenize_candidates(texts)[0]).astype(np.float16)


def grown(matrix: NDArray[np.float16], size: int, rng: np.random.Generator) -> NDArray[np.float16]:
    if size <= len(matrix):
        return matrix[:size]
    extra = size - len(matrix)
    first, second = rng.integers(0, len(matrix), (2, extra))
    weight = rng.uniform(0.2, 0.8, (extra, 1)).astype(np.float32)
    mixed = weight * matrix[first].astype(np.float32) + (1 - weight) * matrix[second].astype(np.float32)
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return np.concatenate([matrix, mixed.astype(np.float16)])


def measure(matrix: NDArray[np.float16], contexts: list[NDArray[np.float32]]) -> None:
    longest = longest_row(matrix)
    began = time.perf_counter()
    exact = [top_k(matrix, codes, 10, longest=longest) for codes in contexts]
    scan_ms = (time.perf_counter() - began) / len(contexts) * 1000
    spec = choose_index("hnsw", *matrix.shape)
    began = time.perf_counter()
    index = CandidateIndex.build(spec, matrix)
    built = time.perf_counter() - began
    for depth in DEPTHS:
        for ef in EF_SEARCH:
            ms, recall = search(matrix, index.with_params({"efSearch": ef}), contexts, depth, exact)
            if recall >= RECALL or ef == EF_SEARCH[-1]:
                print(
                    f"N {len(matrix):7}  scan {scan_ms:7.2f} ms  hnsw {ms:7.2f} ms  scan/hnsw {scan_ms / ms:5.2f}  "
                    f"depth {depth:3}  efSearch {max(ef, depth):3}  recall@10 {recall:.3f}  built in {built:.0f} s",
                    flush=True,
                )
                break


def search(
    matrix: NDArray[np.float16],
    index: CandidateIndex,
    contexts: list[NDArray[np.float32]],
    depth: int,
    exact: list[TopK],
) -> tuple[float, float]:
    """Milliseconds a context, and recall@10."""
    began = time.perf_counter()
    found = []
    for codes in contexts:
        rows, products = index.search(codes, depth)
        chosen = np.sort(union(rows, products, RETRIEVE_K))
        found.append(chosen[top_k(matrix[chosen], codes, 10).rows])
    ms = (time.perf_counter() - began) / len(contexts) * 1000
    return ms, float(np.mean([np.isin(e.rows, f).mean() for e, f in zip(exact, found, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--pool", type=Path, nargs="+", required=True)
    parser.add_argument("--contexts", type=Path, required=True, help="dialogues, .jsonl[.gz|.zst]")
    parser.add_argument("--codes", type=int, default=64, help="M; 1: the bi-encoder")
    parser.add_argument("--count", type=int, default=50, help="contexts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 31_000, 60_000, 100_000, 200_000])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine(), f"seed {arguments.seed}, M {arguments.codes}")
    bi = load_late(arguments.model)
    ranker: Ranker = bi
    if arguments.codes > 1:
        config = model.ModelConfig(
            architecture="poly", base_name="", weights="base", context_vectors="last", n_codes=arguments.codes,
            shared_encoder=True, reduction="mean", normalize=True, score_scale=20.0, max_context_tokens=256,
        )  # fmt: skip
        ranker = model.from_base(arguments.model, config)
    assert isinstance(ranker, model.LateRanker), "asked for"
    matrix = embed_pool(bi, arguments.pool)
    dialogues = list(islice(read_dialogues(arguments.contexts), arguments.count))
    contexts = ranker.encode_contexts([ranker.tokenize_context(each.conversation)[0] for each in dialogues])
    for size in arguments.sizes:
        measure(grown(matrix, size, np.random.default_rng(arguments.seed)), contexts)


if __name__ == "__main__":
    main()
