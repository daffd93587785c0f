"""The proof beside the same figures computed apart."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fakes import silent
from numpy.typing import NDArray
from tiny import write_checkpoint
from tiny_int8 import quantised_checkpoint, require_int8

import polyrank
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.measures import rank_values
from polyrank.model.quantisation import run as module
from polyrank.model.quantisation.run import _nearness, proof
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.rankers.networks import NetworkRanker, VectorRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue

TEXTS = [f"w{n} w{n * 7 % 39}" for n in range(8)]
LISTS = [
    Dialogue(Conversation.of(f"w{n % 40} w{n % 9}"), TEXTS[n % 8], tuple(TEXTS), n % 8, dialogue=f"{n // 3}")
    for n in range(60)
]


def test_few_vectors_are_compared_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        load_vector_ranker(write_checkpoint(tmp_path, f"{seed}", seed=seed, architecture="poly")) for seed in (0, 1)
    )
    ranked = [rank_lists(each, LISTS, silent) for each in (one, other)]
    whole = _nearness(one, other, LISTS, ranked, silent)
    encode, counts = VectorRanker.encode_contexts, list[int]()

    def counted(ranker: VectorRanker, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        counts.append(len(contexts))
        return encode(ranker, contexts)

    monkeypatch.setattr(VectorRanker, "encode_contexts", counted)
    monkeypatch.setattr(module, "_AT_ONCE", 25)
    told = list[tuple[object, ...]]()
    found = _nearness(one, other, LISTS, ranked, lambda *each: told.append(each))
    assert found == pytest.approx(whole, abs=1e-5)
    assert counts == [25, 25, 25, 25, 10, 10]
    assert told == [("comparing vectors", done, 60) for done in (0, 25, 50)]


def first_right(ranker: NetworkRanker) -> np.ndarray:
    return rank_values(rank_lists(ranker, LISTS, silent).ties)["recall@1"]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bi", "cross", "uni"])
def test_it_says_what_int8_changes(tmp_path: Path, architecture: str) -> None:
    require_int8()
    path = quantised_checkpoint(write_checkpoint(tmp_path, "mine", seed=0, architecture=architecture))
    ours = polyrank.load(path, backend="openvino", precision="int8")
    reference = polyrank.load(path)
    assert not isinstance(ours, polyrank.LexicalRanker)
    assert not isinstance(reference, polyrank.LexicalRanker)
    said = proof(ours, reference, LISTS, "abc", silent)
    assert (said.made_for, said.sha256, said.lists, said.conversations) == (reference.fingerprint, "abc", 60, 20)
    mean, low, high = said.recall_change
    assert said.recall_at_1 == pytest.approx(first_right(reference).mean(), abs=1e-6)
    assert mean == pytest.approx((first_right(ours) - first_right(reference)).mean(), abs=1e-6)
    assert low <= mean <= high
    assert 0.9 < min(said.nearness.values()) < 1
    none = proof(reference, reference, LISTS, "abc", silent)
    assert (tuple(none.recall_change), tuple(none.mrr_change)) == ((0, 0, 0), (0, 0, 0))
    assert min(none.nearness.values()) == pytest.approx(1, abs=1e-6)
