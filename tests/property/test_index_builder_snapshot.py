"""Any sequence of updates, laid over a generation, is what it would be in a plain dictionary."""

from pathlib import Path

import numpy as np
import pytest
from cases import cases
from fakes import HashEncoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.encoder import rounded_all
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
            return not lets_through(metadata, inner)  # type: ignore[arg-type]
        case {"n": {"gte": bound}}:
            return "n" in metadata and metadata["n"] >= bound  # type: ignore[operator]
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
