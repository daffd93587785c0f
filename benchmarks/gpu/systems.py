"""All systems at full size: same base, data, steps and seeds; whole weights, on a GPU if there is one.

    python -m benchmarks.gpu.systems --data DATA --output FOLDER [--base MODEL] [--systems bi poly …] [--seeds 0 1 2]
        [--pair-steps 1410] [--passage-steps 1500] [--steps 6000] [--pool 100000]

DATA holds the converted sets. For each seed the quickest part comes first: classes of SICK's pairs, passages of scifact
and nfcorpus, conversations; in each part the quickest system. Tables follow each part. After the first seed comes the
time over 50, 1,000 and `--pool` stored replies. FOLDER keeps checkpoints and figures: the same command goes on where it
was stopped.

A Cross-encoder orders the first 100 passages that the Bi-encoder of the same seed found. Milliseconds are those of one
context's forward pass and of scoring, rows fetched from main memory; bytes are those of a candidate in float16.
"""

import argparse
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from benchmarks import classification, systems
from benchmarks.gpu.measured import CHUNK_TOKENS, DEVICE
from benchmarks.poly_against_bi import trained
from benchmarks.timing import quartiles_ms

import polyrank
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.evaluation.beir import read_collection
from polyrank.model.rankers.networks import CrossRanker, LateRanker
from polyrank.model.registry import classifiers
from polyrank.model.text.dialogues import read_dialogues
from polyrank.model.training.config import Data, TrainConfig
from polyrank.service.cli.arguments import REFERENCE
from polyrank.service.cli.tasks import CollectionTask, TwoStageSearch

FULL: dict[str, Any] = {
    "batch_size": 64,
    "learning_rate": 1e-4,
    "lora_rank": 0,
    "max_turns": 8,
    "max_context_tokens": 256,
    "max_candidate_tokens": 64,
    "chunk_tokens": CHUNK_TOKENS,
}
PASSAGES: dict[str, Any] = {"batch_size": 32, "max_context_tokens": 64, "max_candidate_tokens": 256}
COLLECTIONS = ("scifact", "nfcorpus")
QUICKEST = ("bi", "poly", "mix-a", "mix-b", "mix-c", "virt", "colbert", "deformer", "cross")
STORED = (50, 1000)
READ_BY_CROSS = 100
WARM_UP = 0.05  # share of the steps


def chats(system: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the settings of a run over conversations."""
    config = systems.config_of(system, base, steps, seed)
    return replace(config, **FULL, warmup_steps=round(WARM_UP * steps))


def passages(system: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the settings of a run over queries and passages."""
    return replace(chats(system, base, steps, seed), **PASSAGES)


def queries(source: Path, output: Path) -> Path:
    """Write each query of a collection's training part with each of its relevant documents, as training reads them."""
    found = read_collection(
        source / "corpus.jsonl.zst", source / "queries.train.jsonl.zst", source / "qrels" / "train.tsv"
    )
    texts = dict(zip(found.document_ids, found.documents, strict=True))
    rows = [
        {"context": [query], "response": texts[document], "dialogue": name}
        for name, query, judged in zip(found.query_ids, found.queries, found.judgements, strict=True)
        for document, gain in judged.items()
        if gain > 0 and texts.get(document)
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return output


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """Return what a file holds; make and write it where there is none."""
    if not path.is_file():
        found = orjson.dumps(make(), option=orjson.OPT_SERIALIZE_NUMPY)
        path.write_bytes(found)
        print(f"{path.parent.name}: {path.stem}", file=sys.stderr, flush=True)
    return orjson.loads(path.read_bytes())


def ndcg(checkpoint: Path, first: Path, source: Path) -> Any:
    """Return nDCG@10 of each dev query, (queries,); a Cross-encoder reads what the model `first` found."""
    ranker = polyrank.load(checkpoint, DEVICE)
    cross: CrossRanker | None = None
    if isinstance(ranker, CrossRanker):
        if not first.is_dir():
            raise InvalidInput("a cross-encoder needs passages that bi found; add bi to --systems")
        cross, ranker = ranker, polyrank.load(first, DEVICE)
    assert isinstance(ranker, LateRanker)
    search = TwoStageSearch(cross, READ_BY_CROSS, REFERENCE)
    files = source / "corpus.jsonl.zst", source / "queries.dev.jsonl.zst", source / "qrels" / "dev.tsv"
    return CollectionTask(*files, search, None).measure(ranker, lambda *_: None).values["ndcg@10"]


def compare_passages(given: Namespace) -> None:
    """Train what is missing on both collections together, then print a table for each."""
    sources = [given.data / name for name in COLLECTIONS]
    files = [queries(source, given.output / f"{source.name}.jsonl") for source in sources]
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in COLLECTIONS}
    for system in given.systems:
        for seed in given.seeds:
            checkpoint, first = (systems.place(given.output, each, seed) for each in (system, systems.REFERENCE))
            config = passages(system, given.base, given.steps, seed)
            trained(config, Data(files, [1.0] * len(files), held_out=100), checkpoint, evidence=False)
            for source in sources:
                values = kept(checkpoint / f"ndcg-{source.name}.json", partial(ndcg, checkpoint, first, source))
                found[source.name].setdefault(system, []).append(values)
    for name, values in found.items():
        classification.print_table({each: np.array(own) for each, own in values.items()}, f"nDCG@10, {name}")


def speed(checkpoint: Path, data: Path, pool: int, *, slow: bool) -> dict[str, Any]:
    """Time one context's pass, and scoring so many stored replies; a slow system does not score the whole pool."""
    ranker, counts = polyrank.load(checkpoint, DEVICE), [*STORED, *([] if slow else [pool])]
    conversation = next(read_dialogues(data / systems.YARDSTICKS["Ubuntu IRC"])).conversation
    replies = [each.response for each in islice(read_dialogues(data / systems.TRAIN[0]), pool)]
    texts = list(islice(cycle(replies), max(counts)))
    if isinstance(ranker, CrossRanker):
        calls = {str(count): partial(ranker.score_texts, conversation, texts[:count], None) for count in counts}
        return {"bytes": 0, "ms": quartiles_ms(calls, 1, 3)}
    assert isinstance(ranker, LateRanker)
    tokens = ranker.tokenize_context(conversation)[0]
    [context], stored = (
        ranker.represent_contexts([tokens]),
        ranker.represent_candidates(ranker.tokenize_candidates(texts)[0]),
    )

    def score(count: int) -> None:
        ranker.represent_contexts([tokens])
        ranker.late_scores(context, stored.take(np.arange(count)))

    numbers = stored.first.size + (0 if stored.late is None else stored.late.size)
    return {
        "bytes": round(2 * numbers / len(texts)),
        "ms": quartiles_ms({str(count): partial(score, count) for count in counts}, 1, 3),
    }


def print_speed(found: dict[str, dict[str, Any]], counts: Sequence[int]) -> None:
    """Print a row for each system; `times cross` is at 1,000 replies."""
    print(f"| system | {' | '.join(f'ms, {count:,}' for count in counts)} | times cross | bytes |")
    print(f"| --- |{' --- |' * (len(counts) + 2)}")
    cross = found.get("cross", {}).get("ms", {}).get("1000", [np.nan])[0]
    for system, told in found.items():
        took = [f"{told['ms'][str(count)][0]:.2f}" if str(count) in told["ms"] else "" for count in counts]
        times = cross / told["ms"]["1000"][0]
        print(f"| {system} | {' | '.join(took)} | {'' if np.isnan(times) else f'{times:.1f}'} | {told['bytes']} |")


def compare_speed(given: Namespace, seed: int) -> None:
    """Time the systems trained on conversations."""
    found = {}
    for system in given.systems:
        checkpoint, slow = systems.place(given.output / "chats", system, seed), system in systems.SLOW
        made = partial(speed, checkpoint, given.data, given.pool, slow=slow)
        found[system] = kept(checkpoint / f"speed-{given.pool}.json", made)
    print_speed(found, [*STORED, given.pool])


def compare(given: Namespace) -> None:
    """Train and measure what is missing, seed by seed; print the tables of all seeds so far after each part."""
    chosen = [system for system in QUICKEST if system in given.systems]
    kinds = dict.fromkeys(systems.SYSTEMS[system]["architecture"] for system in chosen)
    for done in range(1, len(given.seeds) + 1):
        shared = {"base": given.base, "seeds": given.seeds[:done], "systems": chosen, "json": False}
        sick = {"set": "sick", "data": given.data / "sick", "output": given.output / "sick", "steps": given.pair_steps}
        models = [kind for kind in kinds if kind in classifiers()]
        classification.compare(Namespace(**shared, **sick, models=models), device=DEVICE)
        own = {"data": given.data, "output": given.output / "passages", "steps": given.passage_steps}
        compare_passages(Namespace(**shared, **own))
        own = {"data": given.data, "output": given.output / "chats", "steps": given.steps}
        systems.compare(Namespace(**shared, **own, lists=None, slow_lists=None), chats, DEVICE)
        if done == 1:
            compare_speed(Namespace(**{**vars(given), "systems": chosen}), given.seeds[0])
        sys.stdout.flush()


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables, or in one line why there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--systems", nargs="+", default=list(QUICKEST), choices=QUICKEST)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pair-steps", type=int, default=1410)
    parser.add_argument("--passage-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--pool", type=int, default=100_000)
    try:
        compare(parser.parse_args(given))
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
