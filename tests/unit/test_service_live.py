"""What is live: the start, switches by this and other processes, and what is refused."""

import errno
import gc
import logging
import math
import time
import weakref
from collections import Counter
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest
from fakes import EVIDENCE, flip
from service_fakes import WordCross, WordRanker, build_store, count_nothing, load, only_part, pool

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.config import LexicalConfig
from polyrank.model.errors import InvalidInput, Shortage
from polyrank.model.search.scan import Query, Status, product
from polyrank.service import resources
from polyrank.service.errors import NotReady
from polyrank.service.live import models
from polyrank.service.live.searchable import Opener, SearchStatus
from polyrank.service.live.switching import Live
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.here import Here
from polyrank.service.ranking.parts import Serving
from polyrank.service.settings import Settings


class Fixture:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.metrics = Metrics()
        self.store = GenerationStore(root)
        self.loads: list[str] = []
        self.live = Live(self.store, Here(self.store, Opener(count_nothing, None, self._load)), self.metrics)

    def _load(self, path: str) -> object:
        self.loads.append(path)
        return load(path)

    def build(self, prefix: str = "c", activate: bool = True, seed: int = 0) -> str:
        return build_store(self.root, pool(20, prefix), ranker=WordRanker(seed), activate=activate)

    def served(self) -> str:
        return self.live.require().generation.id

    def damage(self, generation: str, file: str = "embeddings.bin") -> None:
        flip(self.root, generation, file)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"polyrank_{name}", labels)


@pytest.fixture
def store(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path / "store")


def test_a_generation_that_cannot_be_read_is_refused_until_it_can_be(store: Fixture) -> None:
    only, generations = store.build(), store.root / "generations"
    generations.rename(store.root / "elsewhere")
    generations.write_bytes(b"")
    store.live.start()
    with pytest.raises(NotReady, match="Not a directory"):
        store.live.require()
    with pytest.raises(NotADirectoryError):
        store.live.follow_current()
    generations.unlink()
    (store.root / "elsewhere").rename(generations)
    store.live.follow_current()
    assert store.served() == only
    assert store.live.refused == {}


@pytest.mark.parametrize(
    ("backend", "precision", "lines"),
    [("torch", "float32", 0), ("openvino", "float32", 0), ("openvino", "bfloat16", 1), ("openvino", "int8", 1)],
)
def test_another_precision_than_the_pools_is_told_in_one_line(
    store: Fixture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    precision: str,
    lines: int,
) -> None:
    store.build()
    monkeypatch.setattr(WordRanker, "backend", backend)
    monkeypatch.setattr(WordRanker, "precision", precision)
    with caplog.at_level(logging.INFO):
        store.live.start()
    told = [record for record in caplog.records if "another precision" in record.message]
    assert [record.levelname for record in told] == ["INFO"] * lines
    for record in told:
        assert (record.fields["serves"], record.fields["encoded_the_pool"]) == (precision, "float32")


def test_a_scan_that_gives_way_to_a_slower_one_is_shown(store: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store.build()
    store.live.start()
    serving = store.live.require()
    assert serving.search_status.kind == "stored rows"
    assert store.value("scan_info", kind="stored rows", fallback="false") == 1
    monkeypatch.setattr(
        only_part(serving).scan, "status", Status("stored rows", "the GPU failed 3 times in a row: no", True)
    )
    store.live.refresh()
    assert serving.search_status == ("stored rows", "the GPU failed 3 times in a row: no", True)
    assert store.value("scan_info", kind="stored rows", fallback="true") == 1
    assert store.value("scan_info", kind="stored rows", fallback="false") is None


def test_a_scan_that_a_timing_refused_is_taken_up_without_a_restart(store: Fixture, monkeypatch) -> None:
    store.build()
    store.live.start()
    serving = store.live.require()
    monkeypatch.setattr(
        only_part(serving).scan, "status", Status("stored rows", "it was slow", is_fallback=True, is_timed=True)
    )
    dim = serving.generation.manifest.dim
    monkeypatch.setitem(product._timed_again_at, dim, time.monotonic() + 60)
    store.live.follow_current()
    store.live.refresh()
    assert only_part(store.live.require()).scan is only_part(serving).scan, "it is not timed again yet"
    assert store.value("scan_info", kind="stored rows", fallback="true") == 1
    monkeypatch.setitem(product._timed_again_at, dim, math.inf)
    store.live.follow_current()
    now = store.live.require()
    assert (now.search_status.kind, now.search_status.fallback) == ("bytes", False)
    assert store.value("scan_info", kind="bytes", fallback="false") == 1
    assert store.value("scan_info", kind="stored rows", fallback="true") is None
    query = Query(np.ones((1, dim), np.float32), 5)
    assert (
        only_part(now).scan.top_k([query])[0].rows.tolist() == only_part(serving).scan.top_k([query])[0].rows.tolist()
    )
    store.live.follow_current()
    assert store.live.require() is now


def test_beside_an_index_a_scan_that_gave_way_is_shown_too(store: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(store.root, pool(20), index="flat")
    store.live.start()
    serving = store.live.require()
    why = "the generation was built with an index of the kind flat"
    assert serving.search_status == ("index", why, False)
    monkeypatch.setattr(only_part(serving).scan, "status", Status("stored rows", "the GPU does not scan: no", True))
    assert serving.search_status == ("index", f"{why}; the GPU does not scan: no", True)


@pytest.mark.parametrize(("statuses", "here", "shown"), [
    ("scan", True, ("stored rows", "usual", False)),
    ("scan scan index index", True, ("index", "2 of 4 parts: built", False)),
    ("index scan failed", True, ("stored rows", "1 of 3 parts: no GPU", True)),
    ("scan index", False, ("index", "1 of 2 parts on shards: built", False)),
    ("scan", False, ("stored rows", "1 of 1 parts on shards: usual", False)),
])  # fmt: skip
def test_of_several_parts_the_one_is_shown_that_says_most(
    store: Fixture, statuses: str, here: bool, shown: tuple[str, str, bool]
) -> None:
    known = {
        "scan": SearchStatus("stored rows", "usual", False),
        "index": SearchStatus("index", "built", False),
        "failed": SearchStatus("stored rows", "no GPU", True),
    }
    store.build()
    store.live.start()
    parts: Any = tuple(SimpleNamespace(search_status=known[each], is_here=here) for each in statuses.split())
    assert replace(store.live.require(), parts=parts).search_status == shown


def test_a_model_that_does_not_run_here_is_refused_and_the_old_one_serves_on(store: Fixture, monkeypatch) -> None:
    first = store.build("a")
    store.live.start()

    def fail(_: WordRanker, _contexts: object) -> None:
        raise RuntimeError("Exception from infer_request.cpp:\nno such shape")

    monkeypatch.setattr(WordRanker, "encode_contexts", fail)
    second = store.build("b", seed=1)
    store.live.follow_current()
    assert (store.served(), store.value("index_switches_total", result="refused")) == (first, 1.0)
    assert store.live.refused == {second: "words does not run here: no such shape"}
    again = Live(store.store, Here(store.store, Opener(count_nothing, None, load)), store.metrics)
    again.start()
    assert set(again.refused) == {first, second}, "nothing can be served, and the process goes on"


def test_a_switch_that_could_not_be_tried_is_tried_again(store: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store.build("a")
    store.live.start()
    second, right = store.build("b"), Opener.open

    def fail(*_: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(Opener, "open", fail)
    with pytest.raises(OSError, match="too many open files"):
        store.live.follow_current()
    monkeypatch.setattr(Opener, "open", right)
    store.live.follow_current()
    assert store.served() == second


@pytest.mark.parametrize(
    "lacking",
    [OSError(errno.EMFILE, "Too many open files"), MemoryError(), RuntimeError("Cannot allocate memory (12)")],
)
def test_a_start_that_lacked_something_is_tried_again(store: Fixture, monkeypatch, lacking: Exception) -> None:
    only, right = store.build("a"), Opener.open

    def fail(*_: object) -> None:
        raise lacking

    monkeypatch.setattr(Opener, "open", fail)
    store.live.start()
    assert (store.live.current, set(store.live.refused)) == (None, {only})
    with pytest.raises(Shortage):
        store.live.follow_current()
    monkeypatch.setattr(Opener, "open", right)
    store.live.follow_current()
    assert (store.served(), store.live.refused) == (only, {})
    assert store.value("index_verify_failures_total", kind="shortage") == 2


@pytest.mark.parametrize("way", ["activate", "rollback"])
def test_what_became_active_and_could_not_be_served_is_tried_again(store: Fixture, monkeypatch, way: str) -> None:
    first, second = store.build("a"), store.build("b", activate=way == "rollback")
    store.live.start()
    right, calls = Serving.caught_up, []

    def fail_at_last(serving: Serving) -> Serving:
        calls.append(serving)
        if len(calls) == 2:  # first when it is loaded, then when it is active
            raise OSError("too many open files")
        return right(serving)

    monkeypatch.setattr(Serving, "caught_up", fail_at_last)
    with pytest.raises(OSError, match="too many open files"):
        store.live.rollback() if way == "rollback" else store.live.activate(second)
    reached = first if way == "rollback" else second
    assert store.store.current() == reached != store.served()
    store.live.follow_current()
    assert store.served() == reached


def test_what_loading_leaves_behind_does_not_hold_a_model_that_has_gone(store: Fixture) -> None:
    gone: list[weakref.ref[WordRanker]] = []

    def leaving_garbage(path: str) -> WordRanker:
        ranker: WordRanker = load(path)
        left: list[object] = [ranker]
        left.append(left)  # as frames of errors and traced graphs do
        gone.append(weakref.ref(ranker))
        return ranker

    live = Live(store.store, Here(store.store, Opener(count_nothing, None, leaving_garbage)), store.metrics)
    gc.disable()
    try:
        for seed in (0, 1):
            store.build(seed=seed)
            live.follow_current()
        assert [ranker() is None for ranker in gone] == [True, False]
    finally:
        gc.enable()


def test_a_model_that_did_not_make_the_vectors_is_refused_with_both_named(store: Fixture, monkeypatch) -> None:
    generation = store.build(seed=1)
    monkeypatch.setattr("service_fakes.json.loads", lambda _: {"seed": 2})
    store.live.start()
    assert store.live.current is None
    reason = store.live.refused[generation]
    assert WordRanker(1).fingerprint in reason
    assert WordRanker(2).fingerprint in reason
    assert store.value("index_verify_failures_total", kind="fingerprint") == 1
    with pytest.raises(NotReady, match=WordRanker(1).fingerprint):
        store.live.require()


def test_a_model_that_the_back_end_cannot_run_counts_as_one(store: Fixture) -> None:
    def refuse(_path: str) -> object:
        raise InvalidInput("the numbers of openvino in float16 are wrong for this model; use the back-end torch")

    store.live = Live(store.store, Here(store.store, Opener(count_nothing, None, refuse)), store.metrics)
    generation = store.build()
    store.live.start()
    assert "use the back-end torch" in store.live.refused[generation]
    assert store.value("index_verify_failures_total", kind="model") == 1


@pytest.mark.parametrize("start_first", [True, False])
def test_a_repaired_generation_that_is_activated_again_is_served_again(store: Fixture, start_first: bool) -> None:
    good = store.build()
    if start_first:
        store.live.start()
    bad = store.build()
    store.damage(bad)
    store.live.follow_current() if start_first else store.live.start()
    assert store.served() == good
    store.damage(bad)  # the same bit again: the file is as it was
    store.live.follow_current()
    assert store.served() == good, "nobody has said that it is repaired"
    store.store.activate(bad)
    store.live.follow_current()
    assert (store.served(), store.live.refused) == (bad, {})
    held = store.live.require()
    store.store.activate(bad)
    store.live.follow_current()
    assert store.live.require() is held, "what is served already is not loaded again"


def test_a_pointer_that_names_nothing_keeps_the_old_one_and_says_so_once(store: Fixture) -> None:
    good = store.build()
    store.live.start()
    (store.root / "CURRENT").write_text("../../etc/passwd\n")
    store.live.follow_current()
    store.live.follow_current()
    assert store.served() == good
    assert "CURRENT" in store.live.refused
    assert store.value("index_verify_failures_total", kind="corrupt") == 1
    store.store.activate(good)
    store.live.follow_current()
    assert store.live.refused == {}


def test_a_model_is_shared_between_generations_of_the_same_fingerprint(store: Fixture) -> None:
    store.build()
    store.live.start()
    model = store.live.require().ranker
    store.build("d")
    store.live.follow_current()
    assert store.live.require().ranker is model
    store.build("e", seed=9)
    store.live.follow_current()
    assert store.live.require().ranker.fingerprint == WordRanker(9).fingerprint
    assert len(store.loads) == 2


def test_another_process_may_undo_a_switch(store: Fixture) -> None:
    first, second = store.build(), store.build(activate=False)
    store.live.start()
    store.live.activate(second)
    store.store.activate(first)
    store.live.follow_current()
    assert store.served() == first
    store.live.rollback()
    assert store.served() == second
    store.store.activate(first)
    store.live.follow_current()
    assert store.served() == first


def test_a_generation_whose_model_does_not_load_is_not_activated(store: Fixture, monkeypatch) -> None:
    good = store.build()
    store.live.start()
    other = store.build(seed=5, activate=False)
    monkeypatch.setattr("service_fakes.json.loads", lambda _: {"seed": 6})
    with pytest.raises(FingerprintMismatch):
        store.live.activate(other)
    assert (store.served(), store.store.current()) == (good, good)


def test_a_rollback_that_another_process_has_overtaken_goes_one_step_further(store: Fixture) -> None:
    first, second, third = (store.build(seed=seed) for seed in range(3))
    overtaken: list[str] = []

    def load_vector_ranker(path: str) -> object:
        if second in path and not overtaken:
            overtaken.append(GenerationStore(store.root).rollback())
        return load(path)

    live = Live(store.store, Here(store.store, Opener(count_nothing, None, load_vector_ranker)), store.metrics)
    live.start()
    assert live.require().generation.id == third
    assert live.rollback().generation.id == first
    assert overtaken == [second]
    assert (store.store.current(), store.store.history()) == (first, [])


def test_every_file_is_verified_once_on_its_way_to_being_served(store: Fixture, monkeypatch) -> None:
    files: list[str] = []

    def counted(file: BinaryIO, kind: str) -> object:
        files.append(Path(file.name).name)
        return file_digest(file, kind)

    def read() -> dict[str, int]:
        counts = Counter(files)
        files.clear()
        return counts

    monkeypatch.setattr("polyrank.index_builder.generation.generation.file_digest", counted)
    each = {"candidates.arrow": 1, "embeddings.bin": 1, "ids.index": 1, "texts.index": 1, "words.json": 1}
    store.build("a")
    assert read() == each, "for the manifest, and not again when it becomes active"
    store.live.start()
    assert read() == each
    second = store.build("b")
    files.clear()
    store.live.follow_current()
    assert read() == each
    store.live.rollback()
    assert read() == each
    store.live.activate(second)
    assert read() == each


def test_the_old_unit_lives_as_long_as_a_request_holds_it(store: Fixture) -> None:
    store.build()
    store.live.start()
    held = store.live.require()
    store.build("d")
    store.live.follow_current()
    part = only_part(held)
    assert len(part.generation.embeddings.matrix) == 20
    local, watch = part.generation.embeddings, weakref.ref(part.vectors)
    del held, part
    gc.collect()
    assert watch() is None
    assert len(local.matrix) == 0, "its map was let go of"


def test_a_damaged_log_of_what_stands_in_is_told_until_it_can_be_read(store: Fixture) -> None:
    first, second = store.build("a"), store.build("b")
    store.damage(second)
    store.live.start()
    assert store.served() == first
    log = store.root / "log" / f"{first}.log"
    whole = log.read_bytes()
    log.write_bytes(whole + bytes(40))
    store.live.take_over()
    assert store.live.refused.keys() == {first, second}
    with pytest.raises(GenerationCorrupt, match="update log"):
        store.live.refresh()
    log.write_bytes(whole)
    store.live.take_over()
    assert store.live.refused.keys() == {second}, "what others have refused stays"


def test_what_an_activation_refused_is_not_taken_back_by_reading_its_log(store: Fixture) -> None:
    only = store.build()
    store.live.start()
    store.damage(only)
    with pytest.raises(GenerationCorrupt):
        store.live.activate(only)
    store.live.take_over()
    assert store.live.refused.keys() == {only}


@pytest.mark.parametrize(
    ("evidence", "reranks_by_words", "warns"), [(None, True, 1), (EVIDENCE, True, 0), (None, False, 0)]
)
def test_a_reranker_that_counts_words_and_a_generation_without_is_said_at_every_switch(
    store: Fixture, caplog: pytest.LogCaptureFixture, evidence: LexicalConfig | None, reranks_by_words: bool, warns: int
) -> None:
    build_store(store.root, pool(20), ranker=WordRanker(evidence=evidence))
    live = Live(store.store, Here(store.store, Opener(count_nothing, None, load)), store.metrics, reranks_by_words)
    live.start()
    again = build_store(store.root, pool(20, "d"), ranker=WordRanker(evidence=evidence), activate=False)
    live.activate(again)
    told = [record for record in caplog.records if record.message == "the reranker's words do not count"]
    assert len(told) == 2 * warns
    assert [record.levelname for record in told] == ["WARNING"] * len(told)


def test_a_reranker_has_scored_before_anybody_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    monkeypatch.setattr(WordCross, "score_pair_batch", lambda _, pairs: scored.append(len(pairs.owners)))
    resources._load_scorer(Settings(store=Path("s"), reranker="r"), lambda _: WordCross(), Metrics())
    assert scored == [count for _, count in models._PAIRS]
