"""`polyrank demo`: build, rank and serve the bundled sample in one command."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.index_builder.errors import GenerationError
from polyrank.service.cli.arguments import chosen_runner, loaded
from polyrank.service.cli.commands.evaluate import measure
from polyrank.service.cli.commands.rank import from_store, print_results
from polyrank.service.cli.output import Progress, UsageError, seconds_of

if TYPE_CHECKING:
    from polyrank.model.rankers.networks import VectorRanker

# The lowest R@1/20 of the sample conversations, as the README states it. Measured: docs/measurements/quality.md.
FLOOR = 0.80
# A clone and a wheel hold the sample and the checkpoints beside the three folders.
SOURCE = Path(__file__).resolve().parents[3]
MODEL = str(SOURCE / "checkpoints" / "chat-poly")
RERANKER = str(SOURCE / "checkpoints" / "chat-uni")
STORE = Path(".demo-store")
EXAMPLE = [
    "Hi, my parcel is late.",
    "Sorry to hear that. Has the tracking moved?",
    "No, it has said the same for five days.",
]


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("demo", help="build the bundled sample, rank an example, serve it")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--once", action="store_true", help="evaluate the sample conversations instead of serving")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build the sample if need be, show one ranking, then evaluate or serve."""
    pool, conversations = _sample("pool.jsonl"), _sample("conversations.jsonl")
    with Progress(""):
        from polyrank.service.process import server
        from polyrank.service.settings import Settings

        settings = Settings.load({"store": STORE, "port": arguments.port, "reranker": RERANKER, "drain_delay_s": 0.0})
        _build(pool, arguments)
        answer = from_store(STORE, EXAMPLE, {"top_k": 5})
    print("\n".join(f"  {'customer' if at % 2 == 0 else 'agent'}: {turn}" for at, turn in enumerate(EXAMPLE)))
    print_results(answer)
    if arguments.once:
        with Progress(""):
            figures = measure(MODEL, conversations).as_object()
        recall = figures["recall@1"]
        print(f"R@1/20 over {figures['examples']} sample conversations: {recall:.3f} (floor {FLOOR:.2f})")
        if recall < FLOOR:
            why = "the sample is ranked worse than it was measured; is the model the right one?"
            print(f"polyrank: {why}", file=sys.stderr)
        return int(recall < FLOOR)
    # As every shell finds it, also one in which no environment is active.
    script, url = Path(sys.executable).with_name("polyrank"), f"http://{settings.host}:{settings.port}"
    polyrank = shlex.join([str(script)] if script.is_file() else [sys.executable, "-m", "polyrank.service.cli"])
    print(f"in a browser: {url}/playground")
    print(f"your own replies: {polyrank} build --model {shlex.quote(MODEL)} --pool FILE --store ./store")
    print(f"try it: {polyrank} rank 'my parcel is late' --url {url}", flush=True)
    return server.run(settings)


def _sample(name: str) -> Path:
    path = SOURCE / "examples" / "support" / name
    if not path.is_file():
        raise UsageError(f"{path} is missing; a wheel and a clone of the source have it: install polyrank again")
    return path


def _build(pool: Path, arguments: argparse.Namespace) -> None:
    from polyrank.index_builder.building.pipeline import build
    from polyrank.index_builder.pool.rows import read_pool
    from polyrank.model.rankers.load import load_vector_ranker

    ranker = loaded(load_vector_ranker, str(MODEL), chosen_runner())
    if (active := _active(ranker, pool)) is not None:
        print(f"using generation {active} in {STORE}", file=sys.stderr)
        return
    with Progress("candidates") as progress:
        built = build(ranker, read_pool([pool], STORE), STORE, progress=progress)
    took = f"{built.count} candidates in {seconds_of(arguments):.1f} s"
    print(f"built generation {built.generation}: {took}", file=sys.stderr)


def _active(ranker: "VectorRanker", pool: Path) -> str | None:
    """The active generation's id, if it is undamaged and holds this pool, encoded by this model in this way."""
    from polyrank.index_builder.pool.rows import Candidate, read_pool
    from polyrank.index_builder.store.generation_store import GenerationStore

    sample = [row for row in read_pool([pool]) if isinstance(row, Candidate)]
    store = GenerationStore(STORE)
    try:
        current = store.current()
        if current is None:
            return None
        generation = store.open(current)
    except GenerationError:
        return None
    candidates = generation.candidates.rows(range(len(generation.candidates)))
    generation.close()
    manifest = generation.manifest
    encoded = manifest.model.fingerprint, manifest.backend, manifest.precision, candidates
    return current if encoded == (ranker.fingerprint, ranker.backend, ranker.precision, sample) else None
