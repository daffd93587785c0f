"""Whatever is damaged in a store, what is served is whole: the generation before, and why; never a wrong answer."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from brute_force import paper_scores
from fakes import EVIDENCE
from in_process import TestClient
from service_fakes import WordRanker, asked, build_store, count_nothing, load, pool, rank, words_app

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation
from polyrank.service.live.searchable import Opener
from polyrank.service.live.switching import Live
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.here import Here
from polyrank.service.ranking.parts import Serving

SEED = 20261121
MUTATIONS = 200
TEXT = "w1 w2 w3 w7 w9"
OLD, NEW = pool(30, "old", seed=1), pool(40, "new", seed=2)
ADDED = Candidate("added", TEXT)
FILES = [
    "candidates.arrow", "embeddings.bin", "ids.index", "texts.index",
    "index.faiss", "manifest.json", "model/words.json",
]  # fmt: skip
POINTERS = ["CURRENT", "HISTORY"]
TABLES = ["keys", "starts", "rows", "weights", "columns", "texts", "texts_rows"]
STATISTICS = ["statistics-totals", "statistics-keys", "statistics-frequencies"]
WORDS = [f"words/{name}.npy" for name in [*TABLES, *STATISTICS]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose active generation has been updated, and which has an older one."""
    root = tmp_path_factory.mktemp("built")
    build_store(root, OLD, index="hnsw")
    store = GenerationStore(root)
    log = store.updates.of(store.manifest(build_store(root, NEW, index="hnsw")))
    nothing = Representations(np.empty((0, WordRanker().dim)))
    log.append(Update(1, [ADDED], Representations(encoded([TEXT]))))
    log.append(Update(2, [], nothing, ["new0"]))
    log.append(Update(3, [], nothing, ["added"]))
    return root


def encoded(texts: list[str]) -> np.ndarray:
    ranker = WordRanker()
    return ranker.encode_candidates(ranker.tokenize_candidates(texts)[0]).astype(np.float16)


def best(candidates: list[Candidate]) -> list[str]:
    ranker = WordRanker()
    codes = ranker.encode_contexts([ranker.tokenize_context(Conversation.of(TEXT))[0]])[0]
    scores = paper_scores(encoded([each.text for each in candidates]), codes)
    return [candidates[row].id for row in np.argsort(-scores, kind="stable")[:5]]


def answer(serving: Serving) -> list[str | None]:
    return [place.id for place in rank(serving, asked(TEXT, top_k=5, retrieve_k=50)).places]


def started(root: Path) -> Live:
    live = Live(GenerationStore(root), Here(GenerationStore(root), Opener(count_nothing, None, load)), Metrics())
    live.start()
    return live


# What happens to a file; each returns the names of which the reason must tell one.


def flip(path: Path, chance: random.Random) -> list[str]:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return [path.name]


def truncate(path: Path, chance: random.Random) -> list[str]:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
    return [path.name]


def empty(path: Path, _: random.Random) -> list[str]:
    path.write_bytes(b"")
    return [path.name]


def append(path: Path, chance: random.Random) -> list[str]:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 20)))
    return [path.name]


def remove(path: Path, _: random.Random) -> list[str]:
    path.unlink()
    return [path.name]


def become_directory(path: Path, _: random.Random) -> list[str]:
    path.unlink()
    path.mkdir()
    return [path.name]


def become_link(path: Path, _: random.Random) -> list[str]:
    """To the very same bytes."""
    elsewhere = next(each for each in path.parents if each.name == "store").with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    return [path.name]


def swap(path: Path, chance: random.Random) -> list[str]:
    folder = path.parent.parent if path.parent.name in ("model", "words") else path.parent
    names = POINTERS if path.name in POINTERS else WORDS if path.parent.name == "words" else FILES
    other = chance.choice([folder / name for name in names if folder / name != path])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)
    return [path.name, other.name]


def add_file(path: Path, chance: random.Random) -> list[str]:
    extra = path.with_name(f"{path.name}.{chance.randrange(100)}")
    extra.write_bytes(chance.randbytes(chance.randrange(10)))
    return [extra.name]


def add_directory(path: Path, chance: random.Random) -> list[str]:
    extra = path.with_name(f"{path.name}.{chance.randrange(100)}")
    extra.mkdir()
    return [extra.name]


def add_link(path: Path, chance: random.Random) -> list[str]:
    extra = path.with_name(f"{path.name}.{chance.randrange(100)}")
    extra.symlink_to(chance.choice([path.name, "nowhere", "."]))
    return [extra.name]


Damage = Callable[[Path, random.Random], list[str]]

CHANGES: list[Damage] = [flip, truncate, empty, append, remove, become_directory, become_link, swap]
EXTRAS: list[Damage] = [add_file, add_directory, add_link]


def plan() -> list[tuple[Damage, str]]:
    """Each damage to each artefact at least twice; what depends on chance more often."""
    everything = [(damage, name) for damage in [*CHANGES, *EXTRAS] for name in FILES]
    everything += [(damage, name) for damage in CHANGES for name in POINTERS]
    by_chance = [(damage, name) for damage in (flip, truncate, append) for name in [*FILES, *POINTERS]]
    planned = everything * 2
    return planned + [by_chance[at % len(by_chance)] for at in range(MUTATIONS - len(planned))]


def test_no_damage_to_a_generation_or_the_pointer_is_ever_served(built: Path, tmp_path: Path) -> None:
    chance, root, done = random.Random(SEED), tmp_path / "store", Counter[str]()
    old, new = GenerationStore(built).ids()
    right, before = best(NEW[1:]), best(OLD)
    for damage, name in plan():
        shutil.copytree(built, root)
        done[f"{damage.__name__:16} {name}"] += 1
        if name in POINTERS:
            damage(root / name, chance)
            assert_pointer_survived(root, name, old, new, right, before)
        else:
            told = damage(root / "generations" / new / name, chance)
            assert_gives_way(root, old, new, told, before)
        shutil.rmtree(root)
    # pytest shows it where the test fails.
    print(f"seed {SEED}, {sum(done.values())} mutations:")  # noqa: T201
    print("\n".join(f"{count:3} {what}" for what, count in sorted(done.items())))  # noqa: T201
    assert sum(done.values()) == MUTATIONS


def test_no_damage_to_the_words_of_a_generation_is_ever_served(tmp_path: Path) -> None:
    chance, built, root = random.Random(SEED), tmp_path / "built", tmp_path / "store"
    old = build_store(built, OLD)
    new = build_store(built, pool(80, "new", seed=2), ranker=WordRanker(evidence=EVIDENCE))
    folder = built / "generations" / new / "words"
    assert sorted(f"words/{path.name}" for path in folder.iterdir()) == sorted(WORDS)
    for at, name in enumerate(WORDS):
        for damage in [flip, remove, truncate, swap, [*CHANGES, *EXTRAS][at % 11]]:
            shutil.copytree(built, root)
            told = damage(root / "generations" / new / name, chance)
            with pytest.raises(GenerationCorrupt):
                GenerationStore(root).verify(new)
            assert_gives_way(root, old, new, told, best(OLD))
            shutil.rmtree(root)


def assert_gives_way(root: Path, old: str, new: str, told: list[str], before: list[str]) -> None:
    store = GenerationStore(root)
    with pytest.raises(GenerationCorrupt) as caught:
        Generation.open(store.path(new))
    reason = str(caught.value)
    assert any(name in reason for name in told), (told, reason)
    assert "\n" not in reason
    [opened], refused = store.open_to_serve()
    opened.close()
    assert (opened.id, refused) == (old, [(new, reason)])
    live = started(root)
    serving = live.require()
    assert (serving.generation.id, live.refused, answer(serving)) == (old, {new: reason}, before)


def assert_pointer_survived(root: Path, name: str, old: str, new: str, right: list[str], before: list[str]) -> None:
    store = GenerationStore(root)
    [opened], refused = store.open_to_serve()
    opened.close()
    live = started(root)
    serving = live.require()
    assert serving.generation.id == opened.id
    assert set(live.refused) == {generation for generation, _ in refused}
    assert answer(serving) == {old: before, new: right}[opened.id]
    if refused:
        assert (opened.id, name) == (old, "CURRENT")
        assert all("\n" not in why and why for _, why in refused)
    else:
        assert opened.id == store.current(), "nothing is told only where nothing can be known to be wrong"
    assert set(store.history()) <= {old, new} - {store.current_or_none()}
    if not (root / name).is_dir():
        store.activate(new)
        live.follow_current()
        assert (live.require().generation.id, answer(live.require())) == (new, right)
        assert live.refused.keys().isdisjoint({"CURRENT", new})


def test_a_damaged_update_log_gives_way_to_the_generation_before(built: Path, tmp_path: Path) -> None:
    chance, root = random.Random(SEED), tmp_path / "store"
    old, new = GenerationStore(built).ids()
    log = root / "log" / f"{new}.log"
    for damage in [flip] * 20 + [become_directory]:
        shutil.copytree(built, root)
        damage(log, chance)
        live = started(root)
        serving = live.require()
        assert (serving.generation.id, answer(serving)) == (old, best(OLD)), damage
        assert live.refused.keys() == {new}
        assert f"its update log {new}.log" in live.refused[new]
        shutil.rmtree(root)


def test_an_update_log_cut_short_is_served_up_to_there(built: Path, tmp_path: Path) -> None:
    """A record cut short is one that nobody was told of."""
    root = tmp_path / "store"
    shutil.copytree(built, root)
    log = root / "log" / f"{GenerationStore(root).ids()[1]}.log"
    whole, seen = log.read_bytes(), list[int]()
    answers = [best(NEW), best([*NEW, ADDED]), best([*NEW[1:], ADDED]), best(NEW[1:])]
    for end in range(len(whole), -1, -7):
        log.write_bytes(whole[:end])
        live = started(root)
        serving = live.require()
        assert live.refused == {}
        assert answer(serving) == answers[serving.snapshot.revision]
        seen.append(serving.snapshot.revision)
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {0, 1, 2, 3}


@pytest.mark.parametrize("index", ["exact", "hnsw"])
@pytest.mark.parametrize("value", [300.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "body", [{"top_k": 5}, {"exact": True}, {"candidates": [{"id": "new3"}, {"text": "w1"}]}, {"filter": {"n": 3}}]
)
def test_vectors_that_change_while_they_are_mapped_are_an_error_not_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, index: str, value: float, body: dict[str, object]
) -> None:
    generation = build_store(tmp_path, NEW, index=index)
    with TestClient(words_app(tmp_path), raise_server_exceptions=False) as client:
        ask = {"context": TEXT, **body}
        assert client.post("/rank", json=ask).status_code == 200
        with (tmp_path / "generations" / generation / "embeddings.bin").open("r+b") as file:
            file.write(np.full(len(NEW) * WordRanker.dim, value, np.float16).tobytes())
        failed = client.post("/rank", json=ask)
    assert failed.status_code == 500
    assert "the file of the vectors was changed while it was in use" in caplog.text
