"""Why a filter lets nothing through. Texts are found by their hashes, and compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashEncoder

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation import candidates as module
from polyrank.index_builder.generation.generation import StoredTexts
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import unmatched
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.unmatched import MOST_COMPARED, MOST_CONDITIONS, looking, notes
from polyrank.index_builder.store.update_log import Update
from polyrank.model.text.reading import finish

ENCODER = HashEncoder()
ROWS: list[dict[str, Any]] = [
    {
        "service": "Hotels", "price": 60, "code": "7", "address": {"city": "Oslo"},
        "open": True, "tags": ["a", None], "from": "31.10.2026",
    },
    {
        "service": "Trains", "price": 45.5, "code": "12",
        "address": {"city": "Bergen"}, "open": False, "mixed": 1, "at": "2026-11-28",
    },
    {"service": "Hotels", "price": 90, "code": "3", "address": {}, "open": True, "mixed": "x"},
]  # fmt: skip


def snapshot_of(root: Path, rows: list[dict[str, Any]]) -> Snapshot:
    build(ENCODER, [Candidate(f"c{n}", f"text {n}", row) for n, row in enumerate(rows)], root)
    store = GenerationStore(root)
    return Snapshot.of(store.open(store.current() or ""))


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return snapshot_of(tmp_path_factory.mktemp("store"), ROWS)


def told(snapshot: Snapshot, filter_: dict[str, Any]) -> list[str]:
    return notes(filter_, finish(looking(snapshot, filter_)))


@pytest.mark.parametrize(("filter_", "says"), [
    ({"servce": "Hotels"}, ["no candidate has the field servce; did you mean service?"]),
    ({"Service": "Hotels"}, ["no candidate has the field Service; did you mean service?"]),
    ({"zzz": 1}, ["no candidate has the field zzz"]),
    ({"zzz": {"gte": 1}}, ["no candidate has the field zzz"]),
    ({"zzz": {"exists": True}}, ["no candidate has the field zzz"]),
    ({"city": "Oslo"}, ["no candidate has the field city; did you mean address.city?"]),
    ({"metadata.price": 60}, ["no candidate has the field metadata.price; did you mean price?"]),
    ({"adress.city": "Oslo"}, ["no candidate has the field adress.city; did you mean address.city?"]),
    ({"price": {"gte": "50"}}, ["price holds numbers, and the bounds are strings"]),
    ({"code": {"gte": 5, "lt": 9}}, ["code holds strings, and the bounds are numbers"]),
    ({"code": {"gte": 5, "exists": True}}, ["code holds strings, and the bounds are numbers"]),
    ({"from": {"gte": "2026-11-28"}}, ["from holds strings, and the bounds are dates"]),
    ({"price": {"gte": "2026-11-28"}}, ["price holds numbers, and the bounds are dates"]),
    ({"at": {"gte": 2026}}, ["at holds dates, and the bounds are numbers"]),
    ({"at": {"gt": "2026-11-28"}}, ["at has no value between the bounds"]),
    ({"at": "2026-11-27"}, ["at has none of the values asked for"]),
    ({"open": {"gte": 0}}, ["open holds true or false, and the bounds are numbers"]),
    ({"tags": {"gte": 0}}, ["tags holds null and strings, and the bounds are numbers"]),
    ({"price": "60"}, ["price holds numbers, and the filter asks for strings"]),
    ({"price": [True, "60"]}, ["price holds numbers, and the filter asks for strings and true or false"]),
    ({"open": "true"}, ["open holds true or false, and the filter asks for strings"]),
    ({"address": "Oslo"}, ["address holds objects; name a field in them by a dot, as in address.FIELD"]),
    ({"service": "Taxis"}, ["service has none of the values asked for"]),
    ({"price": {"gt": 1000}}, ["price has no value between the bounds"]),
    ({"service": {"exists": False}}, ["every candidate has the field service"]),
    ({"service": "Trains", "price": 60}, ["no candidate has all of it at once"]),
    ({"$not": {"service": {"exists": True}}}, ["no candidate has all of it at once"]),
    (
        {"$or": [{"servce": "a"}, {"$and": [{"prise": {"gte": 1}}]}]},
        [
            "no candidate has the field servce; did you mean service?",
            "no candidate has the field prise; did you mean price?",
        ],
    ),
    ({"service": "Hotels", "mixed": {"lt": "a"}}, ["mixed has no value between the bounds"]),
    ({"servce": "a", "$not": {"prise": 1}}, ["no candidate has the field servce; did you mean service?"]),
])  # fmt: skip
def test_each_reason_is_told(snapshot: Snapshot, filter_: dict[str, Any], says: list[str]) -> None:
    assert told(snapshot, filter_) == [f"filter: {each}" for each in says]


@pytest.mark.parametrize("filter_", [
    {}, {"service": "Hotels"}, {"servce": {"exists": False}}, {"$not": {"servce": "Hotels"}},
    {"$or": [{"servce": "Hotels"}, {"service": "Hotels"}]}, {"address.city": "Oslo"},
])  # fmt: skip
def test_nothing_is_said_where_something_passes(snapshot: Snapshot, filter_: dict[str, Any]) -> None:
    assert told(snapshot, filter_) == []


def test_updates_count(snapshot: Snapshot) -> None:
    fields = {"colour": "red", "price": "cheap", "shop": {"town": "Moss"}, "address": 5}
    added = [Candidate("new", "a text", fields)]
    later = snapshot.updated([Update(1, added, ENCODER.of(["a text"]), ["c0", "c1", "c2"])])
    assert told(later, {"color": "red"}) == ["filter: no candidate has the field color; did you mean colour?"]
    assert told(later, {"town": "Moss"}) == ["filter: no candidate has the field town; did you mean shop.town?"]
    assert told(later, {"price": {"gte": 5}}) == ["filter: price holds strings, and the bounds are numbers"]
    both = snapshot.updated([Update(1, added, ENCODER.of(["a text"]), ["c0"])])
    assert told(both, {"address": "Oslo"}) == ["filter: address holds numbers, and the filter asks for strings"]
    assert told(both, {"price": True})[0].startswith("filter: price holds numbers and strings, and the filter asks for")
    assert told(later, {"service": "Hotels"}) == ["filter: no candidate has the field service"], "not: did you mean it?"
    assert told(later, {"colour": "red"}) == []


def test_what_parts_have_seen_is_joined(tmp_path: Path) -> None:
    one = snapshot_of(tmp_path / "one", [{"price": "5", "lang": "en"}])
    other = snapshot_of(tmp_path / "other", [{"price": True, "language": "no"}])

    def joined(filter_: dict[str, Any]) -> list[str]:
        return notes(filter_, finish(looking(one, filter_)).joined(finish(looking(other, filter_))))

    assert joined({"price": {"gt": 1}}) == ["filter: price holds strings and true or false, and the bounds are numbers"]
    assert joined({"langage": "en"}) == ["filter: no candidate has the field langage; did you mean language?"]
    assert joined({"lang": "no"}) == ["filter: lang has none of the values asked for"]
    assert joined({"lang": "en"}) == []
    assert joined({"lang": "en", "language": "no"}) == ["filter: no candidate has all of it at once"]


def test_the_work_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(tmp_path, [{f"field{n}": 1 for n in range(3 * MOST_COMPARED)}, {"x" * 5000: 1}])
    compared: list[int] = []

    def close(word: str, possibilities: list[str], *rest: Any, **options: Any) -> list[str]:
        compared.append(len(possibilities) * len(word))
        return []

    monkeypatch.setattr(unmatched, "get_close_matches", close)
    assert len(told(snapshot, {f"{'f' * 50_000}{n}": 1 for n in range(64)})) <= MOST_CONDITIONS
    assert compared
    assert max(compared) <= MOST_COMPARED * unmatched.MAX_NAME_CHARS


def stored(root: Path, *texts: str) -> Path:
    pool = [Candidate(f"c{at}", text) for at, text in enumerate(texts)]
    return GenerationStore(root).path(build(ENCODER, pool, root).generation)


def test_the_first_row_of_a_text_is_found_letter_by_letter(tmp_path: Path) -> None:
    path = stored(tmp_path, "yes", "no", "yes", "Yes", "caf\u00e9", "cafe\u0301", "")
    opened = GenerationStore(tmp_path).open(path.name)
    rows = opened.texts.first_rows(["yes", "Yes", "YES", "cafe\u0301", "caf\u00e9", "", "yes "])
    assert rows.tolist() == [0, 3, -1, 5, 4, 6, -1]
    opened.close()


def test_a_text_with_the_hash_of_another_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash_id", lambda text: len(text))
    path = stored(tmp_path, "one", "two", "three", "one")
    opened = GenerationStore(tmp_path).open(path.name)
    monkeypatch.setattr("polyrank.index_builder.vectors.local.hash_id", lambda text: len(text))
    assert opened.texts.first_rows(["one", "two", "three", "seven"]).tolist() == [0, -1, 2, -1]
    vectors = opened.embeddings.matrix.astype(np.float32)
    expected = np.array([ENCODER.vector(text) for text in ("one", "two", "three", "one")])
    assert np.allclose(vectors, expected, atol=2e-3)
    opened.close()


def test_of_several_generations_the_first_that_has_a_text_counts(tmp_path: Path) -> None:
    paths = [stored(tmp_path / "a", "x", "y"), stored(tmp_path / "b", "y", "z", "w")]
    known = StoredTexts(paths, ENCODER.dim, "float16", None)(["w", "none", "y", "x"])
    assert known.positions.tolist() == [0, 2, 3]
    expected = np.array([ENCODER.vector(text) for text in ("w", "y", "x")]).astype(np.float16)
    assert np.array_equal(known.representations.first, expected)
    nothing = StoredTexts(paths, ENCODER.dim, "float16", None)(["none"])
    assert (nothing.positions.tolist(), len(nothing.representations.first)) == ([], 0)
    assert len(StoredTexts([], ENCODER.dim, "float16", None)(["x"]).positions) == 0
