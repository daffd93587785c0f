"""Updates laid over a generation are what they would be in a dictionary; values in Redis come back or are damaged."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from cases import cases
from fakes import HashEncoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.local import DTYPES, rounded_all
from polyrank.index_builder.vectors.redis import (
    CORRUPT,
    HIT,
    MISS,
    ROWS_VERSION,
    decode_many,
    encode,
    prefix,
)
from polyrank.model.representations import LateRows

pytestmark = pytest.mark.quick

ENCODERS = [HashEncoder(dim=4), HashEncoder(dim=4, late=LateRows(3, 2)), HashEncoder(dim=4, late=LateRows(2, None))]
BUILT = [Candidate(f"b{n}", f"text {n}", {"n": n % 3, "even": n % 2 == 0}) for n in range(8)]
IDS = [*(each.id for each in BUILT), *(f"n{n}" for n in range(5))]

METADATA = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "even": st.booleans()})
CHANGES = st.tuples(
    st.dictionaries(st.sampled_from(IDS), st.tuples(st.sampled_from("abc"), METADATA), max_size=4),
    st.lists(st.sampled_from(IDS), unique=True, max_size=4),
)
FILTERS = [{"n": 1}, {"n": [0, 2], "even": True}, {"even": {"exists": False}}, {"n": {"gte": 1}}, {"$not": {"n": 0}}]


@pytest.fixture(scope="module", params=ENCODERS, ids=["first", "fixed", "ragged"])
def encoder(request: pytest.FixtureRequest) -> HashEncoder:
    """A model without a second stage, one with two rows a candidate, and one with some."""
    return request.param


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory, encoder: HashEncoder) -> Generation:
    root: Path = tmp_path_factory.mktemp("store")
    return GenerationStore(root).open(build(encoder, BUILT, root).generation)


def lets_through(metadata: dict[str, object], filter_: dict[str, object]) -> bool:
    """The filters above, by hand."""
    match filter_:
        case {"$not": inner}:
            return not lets_through(metadata, inner)
        case {"n": {"gte": bound}}:
            return "n" in metadata and metadata["n"] >= bound
        case {"even": {"exists": wanted}}:
            return ("even" in metadata) == wanted
    return all(
        field in metadata and metadata[field] in (wanted if isinstance(wanted, list) else [wanted])
        for field, wanted in filter_.items()
    )


def assert_is(snapshot: Snapshot, encoder: HashEncoder, model: dict[str, Candidate], revision: int) -> None:
    """The snapshot holds these candidates, in their dictionary's order."""
    rows = snapshot.matching({})
    assert (snapshot.revision, snapshot.count) == (revision, len(model))
    assert (np.diff(rows) > 0).all()
    assert snapshot.candidates(rows) == list(model.values())
    by_id = dict(zip(model, rows.tolist(), strict=True))
    assert snapshot.rows(IDS).tolist() == [by_id.get(each, -1) for each in IDS]
    for filter_ in FILTERS:
        kept = [by_id[each.id] for each in model.values() if lets_through(each.metadata, filter_)]
        assert snapshot.matching(filter_).tolist() == kept
    is_added, own, added = snapshot.split(rows)
    vectors = np.empty((len(rows), encoder.dim), np.float16)
    vectors[~is_added], vectors[is_added] = snapshot.generation.embeddings.matrix[own], snapshot.vectors_added[added]
    expected = encoder.of([each.text for each in model.values()])
    np.testing.assert_array_equal(vectors, expected.first)
    for stored, wanted in zip(snapshot.representations(rows), expected, strict=True):
        assert (stored is None) == (wanted is None)
        np.testing.assert_array_equal(stored, wanted)


@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.lists(CHANGES, max_size=12), cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_updates_are_those_of_a_dictionary_and_the_past_stays(generation, encoder, changes, cuts) -> None:
    model, snapshot = {each.id: each for each in BUILT}, Snapshot.of(generation)
    past: list[tuple[Snapshot, dict[str, Candidate], int]] = [(snapshot, dict(model), 0)]
    waiting: list[Update] = []
    models = [dict(model)]
    for revision, ((upserts, deletes), cut) in enumerate(zip(changes, cuts, strict=False), start=1):
        candidates = [Candidate(each, text, metadata) for each, (text, metadata) in upserts.items()]
        stored = rounded_all(encoder.of([each.text for each in candidates]), "float16")
        waiting.append(Update(revision, candidates, stored, deletes))
        for each in (*deletes, *upserts):
            model.pop(each, None)
        model.update((each.id, each) for each in candidates)
        models.append(dict(model))
        if cut:  # several at once, or one by one
            snapshot, waiting = snapshot.updated(waiting), []
            past.append((snapshot, dict(model), revision))
    for at in reversed(past):  # the latest first: what is looked at must not help what is looked at later
        snapshot, *rest = at
        assert_is(snapshot, encoder, *rest)
    latest = past[-1][0]
    for revision in range(latest.revision + 1):  # also those that came with others
        assert_is(latest.at(revision), encoder, models[revision], revision)
    assert latest.at(latest.revision + 1) is latest


DIMS = st.integers(1, 40)
KEYS = st.binary(max_size=30)


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, int, list[bytes], np.ndarray]:
    """Keys and vectors of any bits, NaN and infinities too: the codec carries bits."""
    dtype, dim = draw(st.sampled_from(sorted(DTYPES))), draw(DIMS)
    keys = draw(st.lists(KEYS, max_size=8))
    raw = draw(arrays(np.uint8, (len(keys), dim * DTYPES[dtype].itemsize)))
    return dtype, dim, keys, raw.view(DTYPES[dtype])


@given(entries())
def test_what_is_encoded_is_decoded_to_the_bit(case: tuple[str, int, list[bytes], np.ndarray]) -> None:
    dtype, dim, keys, vectors = case
    head = prefix(DTYPES[dtype], dim)
    values = [encode(key, vector, head) for key, vector in zip(keys, vectors, strict=True)]
    decoded, _, status = decode_many(keys, values, DTYPES[dtype], LateRows(dim, 1))
    assert (decoded.dtype, decoded.shape) == (DTYPES[dtype], (len(keys), dim))
    assert decoded.tobytes() == vectors.tobytes()
    assert (status == HIT).all()


@settings(max_examples=cases(25))
@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 8), KEYS, st.randoms(use_true_random=False))
def test_every_single_flipped_bit_is_detected(dtype: str, dim: int, key: bytes, random: Random) -> None:
    vector = np.frombuffer(random.randbytes(dim * DTYPES[dtype].itemsize), DTYPES[dtype])
    value = encode(key, vector, prefix(DTYPES[dtype], dim))
    flipped = []
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << (bit % 8)
        flipped.append(bytes(damaged))
    decoded, _, status = decode_many([key] * len(flipped), flipped, DTYPES[dtype], LateRows(dim, 1))
    assert (status == CORRUPT).all()
    assert not len(decoded)


@given(DIMS, st.integers(-9, 9).filter(bool))
def test_another_length_dimension_or_dtype_does_not_pass(dim: int, change: int) -> None:
    half, full = DTYPES["float16"], DTYPES["float32"]
    value = encode(b"k", np.zeros(2 * dim, half), prefix(half, 2 * dim))
    as_single = encode(b"k", np.zeros(dim, full), prefix(full, dim))
    resized = value[:change] if change < 0 else value + bytes(change)
    found = decode_many([b"k"] * 3, [resized, as_single, b""], half, LateRows(2 * dim, 1))
    assert (found.status == CORRUPT).all()


def test_good_missing_and_damaged_values_keep_their_places() -> None:
    dtype = DTYPES["float32"]
    good = encode(b"b", np.array([1, 2], dtype), prefix(dtype, 2))
    vectors, counts, status = decode_many([b"a", b"b", b"c", b"b"], [None, good, good, good], dtype, LateRows(2, 1))
    assert status.tolist() == [MISS, HIT, CORRUPT, HIT]
    assert (vectors.tolist(), counts.tolist()) == ([[1, 2], [1, 2]], [0, 1, 0, 1])


@settings(max_examples=cases(25))
@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 4), st.integers(0, 3), KEYS, st.randoms(use_true_random=False))
def test_rows_come_back_and_no_flipped_bit_other_key_or_number_passes(dtype, dim, count, key, random) -> None:
    stored, late = DTYPES[dtype], LateRows(dim, None)
    rows = np.frombuffer(random.randbytes(count * dim * stored.itemsize), stored).reshape(count, dim)
    value = encode(key, rows, prefix(stored, dim, ROWS_VERSION))
    found, counts, status = decode_many([key], [value], stored, late, ROWS_VERSION)
    assert (found.shape, found.dtype, found.tobytes()) == (rows.shape, stored, rows.tobytes())
    assert (counts.tolist(), status.tolist()) == ([count], [HIT])
    flipped = []
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << (bit % 8)
        flipped.append(bytes(damaged))
    found, _, status = decode_many([key] * len(flipped), flipped, stored, late, ROWS_VERSION)
    assert (len(found), set(status.tolist())) == (0, {CORRUPT})
    others = decode_many([key + b"x", key, key], [value, None, b""], stored, late, ROWS_VERSION)
    assert others.status.tolist() == [CORRUPT, MISS, CORRUPT]
    for other in (LateRows(dim, count + 1), LateRows(dim + 1, None)):
        assert decode_many([key], [value], stored, other, ROWS_VERSION).status.tolist() == [CORRUPT]
    assert decode_many([key], [value], stored, late).status.tolist() == [CORRUPT]
