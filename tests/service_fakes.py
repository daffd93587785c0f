"""Models without torch weights, and small stores built with them, for the service's tests."""

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from brute_force import paper_scores
from fastapi import FastAPI
from numpy.typing import NDArray

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.words import evidence_of
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.architectures.batching import pair_lengths
from polyrank.model.checkpoint.files import CONFIG_FILE
from polyrank.model.config import CalibrationConfig, LexicalConfig, ModelConfig
from polyrank.model.errors import CheckpointInvalid, ModelNotFound
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.representations import Additions, ContextEncoding, LateRows, Representations
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import Steps
from polyrank.model.text.sequences import Pairs
from polyrank.model.text.tokenizer import Token
from polyrank.service.caching.vectors import Caches
from polyrank.service.live.models import LoadRanker, PairScorer
from polyrank.service.live.searchable import Opener
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.engine import Engine
from polyrank.service.ranking.here import serve
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.retrieval import LocalPart
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.values import PoolQuery, Ranked, RankRequest
from polyrank.service.scheduling.stages import Journey
from polyrank.service.settings import Settings

DIM = 16
CODES = 3
MAX_TOKENS = 32
READ_AT_ONCE = 500
WORDS = [f"w{n}" for n in range(40)]


@lru_cache(4096)
def _token(word: str) -> int:
    return int.from_bytes(sha256(word.encode()).digest()[:4], "big")


@lru_cache(4096)
def _direction(seed: int, token: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, token]).normal(size=DIM)


def _tokens(text: str) -> list[int]:
    return [_token(word) for word in re.findall(r"\w+", text.lower())]


class WordRanker:
    """A poly-encoder of words: every word is a random direction, drawn from its own hash and the seed."""

    architecture = "poly"
    calibration: CalibrationConfig | None = None
    languages: tuple[str, ...] = ()
    backend, precision, rounding, choice = "torch", "float32", "float32", None
    dim = DIM
    max_input_tokens = MAX_TOKENS

    def __init__(
        self, seed: int = 0, name: str = "words", evidence: LexicalConfig | None = None, late: LateRows | None = None
    ) -> None:
        self.seed, self.evidence, self.late_rows = seed, evidence, late
        self.name = name
        self.fingerprint = sha256(f"words {seed}{evidence or ''}{late or ''}".encode()).hexdigest()
        self.on_encode: Callable[[], None] = lambda: None

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        ids = [token for turn in conversation.turns for token in _tokens(turn.text)]
        return ids[-MAX_TOKENS:], Truncation(tokens=max(0, len(ids) - MAX_TOKENS))

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        yield
        return self.tokenize_context(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        ids = [_tokens(text) for text in texts]
        return [each[:MAX_TOKENS] for each in ids], sum(len(each) > MAX_TOKENS for each in ids)

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        return [
            [Token(_tokens(word[0])[0], word[0], word.span()) for word in re.finditer(r"\w+", text)] for text in texts
        ]

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        self.on_encode()
        return [np.stack([self._vector(ids[code::CODES] or ids) * 5 for code in range(CODES)]) for ids in contexts]

    def encode_candidate_batch(self, candidates: Sequence[list[int]]) -> NDArray[np.float32]:
        return self.encode_candidates(candidates)

    def represent_context_batch(self, contexts: Sequence[list[int]]) -> list[ContextEncoding]:
        """Those of a second stage are the words, one by one, the newest four times as large."""
        made = [ContextEncoding(codes) for codes in self.encode_contexts(contexts)]
        if self.late_rows is None:
            return made
        return [each._replace(late=self._words(ids) * 2) for each, ids in zip(made, contexts, strict=True)]

    def represent_candidate_batch(self, candidates: Sequence[list[int]]) -> Representations:
        return self._with_rows(candidates, self.encode_candidate_batch(candidates))

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        return self._with_rows(candidates, self.encode_candidates(candidates, on_done))

    def _with_rows(self, candidates: Sequence[list[int]], first: NDArray[np.float32]) -> Representations:
        """Rows of a second stage: the words, one by one; of a fixed number the first ones, over and over."""
        if self.late_rows is None:
            return Representations(first)
        count = self.late_rows.count
        rows = [self._words(ids if count is None else [*(ids * count)[:count]] or [0] * count) for ids in candidates]
        counts = np.array([len(each) for each in rows], np.int64)
        return Representations(first, np.concatenate([np.empty((0, DIM), np.float32), *rows]), counts)

    def _words(self, ids: Sequence[int]) -> NDArray[np.float32]:
        return np.array([_direction(self.seed, token) for token in ids] or [np.zeros(DIM)], np.float32)

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        """The sum over the context's words of the best product with a row of the candidate's."""
        assert candidates.counts is not None
        products = context.late.astype(np.float64) @ candidates.late.astype(np.float64).T
        starts = np.cumsum(candidates.counts) - candidates.counts
        return (
            np.maximum.reduceat(products, starts, axis=1).sum(axis=0).astype(np.float32)
            if len(starts)
            else np.empty(0, np.float32)
        )

    def late_tokens(self, context_tokens: int, counts: NDArray[np.int64]) -> int:
        return int(counts.sum()) // 100

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        vectors = np.empty((len(candidates), DIM), np.float32)
        for at, ids in enumerate(candidates):
            vectors[at] = self._vector(ids)
            if on_done is not None:
                on_done(1)
        return vectors

    def _vector(self, ids: Sequence[int]) -> NDArray[np.float32]:
        total = np.zeros(DIM)
        for token in ids:
            total += _direction(self.seed, token)
        norm = np.linalg.norm(total)
        return (total / norm if norm else total).astype(np.float32)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        late = None if self.late_rows is None else [self.late_rows.count]
        (directory / "words.json").write_text(json.dumps({"seed": self.seed, "late": late}))
        if self.evidence is not None:
            config = ModelConfig(architecture="poly", base_name="words", evidence=self.evidence)
            (directory / CONFIG_FILE).write_text(json.dumps(config.to_json()))


class WordCross:
    """A cross-encoder that counts the words shared with the context."""

    name = "overlap"
    architecture = "cross"
    backend, precision, rounding, choice = "torch", "float32", "float32", None
    fingerprint = sha256(b"overlap").hexdigest()
    max_input_tokens = 2 * MAX_TOKENS
    evidence: LexicalScore | None = None
    calibration: CalibrationConfig | None = None
    languages: tuple[str, ...] = ()

    def pair_steps(self, conversation: Conversation, texts: Sequence[str]) -> Steps[tuple[Pairs, Truncation]]:
        yield
        said = [token for turn in conversation.turns for token in _tokens(turn.text)]
        return Pairs([said], [_tokens(text) for text in texts], [0] * len(texts)), Truncation()

    def pair_lengths(self, pairs: Pairs) -> list[int]:
        return pair_lengths(pairs)

    def score_pair_batch(self, pairs: Pairs) -> NDArray[np.float32]:
        return self.score_pairs(pairs)

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        read = zip(pairs.owners, pairs.candidates, strict=True)
        return np.array([len(set(pairs.contexts[owner]) & set(words)) for owner, words in read], np.float32)


def load(path: str) -> Any:
    """What model.load is to checkpoints: "cross" names the cross-encoder, a directory a WordRanker."""
    if path == "cross":
        return WordCross()
    file = Path(path) / "words.json"
    if not file.exists():
        raise ModelNotFound(f"no model {path}")
    try:
        config = evidence_of(Path(path))
        said = json.loads(file.read_text())
        late = LateRows(DIM, *said["late"]) if said.get("late") else None
        return WordRanker(said["seed"], evidence=config and config.config, late=late)
    except ValueError as error:
        raise CheckpointInvalid(str(error)) from error


def pool(count: int, prefix: str = "c", seed: int = 0) -> list[Candidate]:
    """Candidates of a few random words; some texts occur twice, so that scores tie."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 6))) for _ in range(count)]
    metadata = [{"lang": str(rng.choice(["en", "de", "fr"])), "even": n % 2 == 0, "n": n % 7} for n in range(count)]
    return [Candidate(f"{prefix}{n}", text, meta) for n, (text, meta) in enumerate(zip(texts, metadata, strict=True))]


def numbered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The same with a number at the end, which two of them have in common: a rare word, if there are 100 or more."""
    numbers = len(candidates) // 2
    return [replace(each, text=f"{each.text} ord-{n % numbers}") for n, each in enumerate(candidates)]


def build_store(
    root: Path,
    candidates: Iterable[Candidate] | None = None,
    *,
    ranker: WordRanker | None = None,
    index: str = "exact",
    activate: bool = True,
    redis_url: str | None = None,
    dtype: str = "float16",
    parts: int = 1,
) -> str:
    """Build a generation; returns its id."""
    rows = pool(60) if candidates is None else candidates
    return build(
        ranker or WordRanker(),
        rows,
        root,
        BuildOptions(index=index, activate=activate, redis_url=redis_url, dtype=dtype),
        parts=parts,
    ).generation


def words_app(store: Path, **fields: Any) -> FastAPI:
    """A server's app, with settings, over a store of models of words; a reranker may be "cross"."""
    from polyrank.service.app import create_app  # seconds, and most tests do without a server

    return create_app(Settings(store=store, **fields), load, load)


def count_nothing(_tier: str, _result: str, _count: int) -> None:
    pass


def open_serving(
    root: Path, count: Any = count_nothing, caches: Caches | None = None, load: LoadRanker = load
) -> Serving:
    """Open the active generation as a live unit."""
    store = GenerationStore(root)
    current = store.current()
    assert current is not None
    return serve(Opener(count, caches, load), store.open_parts(current), store.updates.of(store.active()))


def only_part(serving: Serving) -> LocalPart:
    """The only part of a pool, which is in this process."""
    [part] = serving.parts
    assert isinstance(part, LocalPart)
    return part


def asked(text: str = "w1 w2 w3", **fields: Any) -> RankRequest:
    """A ranking request."""
    return RankRequest(**{"conversation": Conversation.of(text), **fields})


def pool_query(request: RankRequest) -> PoolQuery:
    """What a request without a second stage asks of a part."""
    return PoolQuery(
        needed=request.depth,
        retrieve_k=request.retrieve_k,
        exact=request.exact,
        filter=request.filter,
        exclude_ids=request.exclude_ids,
        conversation=request.conversation,
    )


def rank(
    serving: Serving, request: RankRequest, scorer: PairScorer | None = None, deadline: float = math.inf
) -> Ranked:
    """One ranking with a runtime of its own."""

    async def alone() -> Ranked:
        with running(scorer) as runtime:
            return await ranking(runtime, serving, request, deadline)

    return asyncio.run(alone())


@contextmanager
def running(scorer: PairScorer | None = None, **bounds: Any) -> Iterator[Runtime]:
    """A runtime until the end of the block, in an event loop."""
    with closing(Runtime(RuntimeSettings(**bounds), Metrics(), scorer)) as runtime:
        yield runtime


async def ranking(runtime: Runtime, serving: Serving, request: RankRequest, deadline: float = math.inf) -> Ranked:
    """One ranking beside others."""
    return await Engine(runtime).rank(serving, request, Journey(deadline))


def word_additions(serving: Serving, text: str, rows: NDArray[np.int64]) -> Additions | None:
    """The lexical scores of rows of a snapshot, one by one."""
    words = serving.generation.words
    if words is None:
        return None
    texts = [candidate.text for candidate in only_part(serving).snapshot.candidates(rows)]
    value_of = {
        each: words.evidence.values(Conversation.of(text), WordTable.of([each], words.table.statistics))[0]
        for each in set(texts)
    }
    values = np.array([value_of[each] for each in texts], np.float32)
    return Additions(words.evidence.late_weight, values)


def brute_force(
    serving: Serving, text: str, top_k: int, keep: Callable[[Candidate], bool] = lambda _: True
) -> list[tuple[str, float]]:
    """Every stored vector scored the paper's way, and by its words where they count; ties by row."""
    codes = serving.ranker.encode_contexts([serving.ranker.tokenize_context(Conversation.of(text))[0]])[0]
    rows = only_part(serving).snapshot.matching({})
    _, own, added = only_part(serving).snapshot.split(rows)
    matrix = np.concatenate(
        [only_part(serving).generation.embeddings.matrix[own], only_part(serving).snapshot.vectors_added[added]]
    )
    scores = paper_scores(matrix, codes, word_additions(serving, text, rows))
    order = np.argsort(-scores, kind="stable")
    found: list[tuple[str, float]] = []
    for part in np.split(order, range(READ_AT_ONCE, len(order), READ_AT_ONCE)):
        candidates = only_part(serving).snapshot.candidates(rows[part])
        found += [(each.id, float(score)) for each, score in zip(candidates, scores[part], strict=True) if keep(each)]
        if len(found) >= top_k:
            break
    return found[:top_k]
