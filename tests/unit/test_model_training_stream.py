"""The stream of batches: reproducible, fair to every example, and one file at a time."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from command_line import write_rows

from model.training.corpus import Corpus
from model.training.stream import Batch, batches


@pytest.fixture
def corpora(tmp_path: Path) -> list[Corpus]:
    """Files of 60 and 20 examples, drawn from as 1 to 3."""
    return [corpus(tmp_path / "a.jsonl", 60, 1.0), corpus(tmp_path / "b.jsonl", 20, 3.0)]


def corpus(path: Path, count: int, weight: float) -> Corpus:
    rows = [{"context": [f"{path.stem}{n}"], "response": f"reply {n}"} for n in range(count)]
    return Corpus(write_rows(path, rows), every_turn=False, weight=weight)


def drawn(stream: Iterator[Batch], count: int) -> list[list[str]]:
    """Names of the examples of each batch, those that lend their reply behind the others."""
    return [[example.dialogue for example in batch.examples + batch.others] for batch in islice(stream, count)]


def test_the_same_seed_and_rank_give_the_same_batches(corpora: list[Corpus]) -> None:
    first = drawn(batches(corpora, 4, seed=5), 50)
    assert drawn(batches(corpora, 4, seed=5), 50) == first
    assert drawn(batches(corpora, 4, seed=6), 50) != first
    assert drawn(batches(corpora, 4, seed=5, rank=1), 50) != first


def test_ranks_and_seeds_are_not_mixed_up(corpora: list[Corpus]) -> None:
    """Seed 1 of process 11 and seed 11 of process 1 have the same digits."""
    assert drawn(batches(corpora, 4, seed=1, rank=11), 20) != drawn(batches(corpora, 4, seed=11, rank=1), 20)


@pytest.mark.parametrize("buffer", [1, 7, 59, 60, 61, 1000])
def test_every_example_comes_once_an_epoch(corpora: list[Corpus], buffer: int) -> None:
    stream = batches(corpora[:1], 6, seed=0, buffer=buffer)
    epochs = [[name for batch in drawn(stream, 10) for name in batch] for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(f"a{n}" for n in range(60))
    if buffer > 1:
        assert len({tuple(epoch) for epoch in epochs}) == 3, "each is shuffled anew"


def test_a_small_buffer_shuffles_among_as_many(corpora: list[Corpus]) -> None:
    order = [name for batch in drawn(batches(corpora[:1], 6, seed=0, buffer=7), 10) for name in batch]
    assert order != [f"a{n}" for n in range(60)]
    for place, name in enumerate(order[:50]):
        assert int(name[1:]) <= place + 7, "an example cannot come before it was read"


def test_a_batch_comes_from_one_file_and_files_by_weight(corpora: list[Corpus]) -> None:
    found = drawn(batches(corpora, 4, seed=0), 2000)
    assert {len(batch) for batch in found} == {4}
    assert all(len({name[0] for name in batch}) == 1 for batch in found)
    counts = Counter(batch[0][0] for batch in found)
    assert counts["b"] / 2000 == pytest.approx(0.75, abs=0.04)  # four standard errors


def test_a_batch_larger_than_a_file_has_examples_twice(corpora: list[Corpus]) -> None:
    [batch] = drawn(batches(corpora[1:], 45, seed=0), 1)
    assert sorted(Counter(batch).values()) == [2] * 15 + [3] * 5


def test_replies_of_others_come_from_the_same_file_and_are_not_those_of_the_examples(corpora: list[Corpus]) -> None:
    stream = batches(corpora, 4, seed=0, extra_replies=6)
    for batch in islice(stream, 50):
        assert (len(batch.examples), len(batch.others)) == (4, 6)
    [together] = drawn(batches(corpora[:1], 15, seed=0, extra_replies=45), 1)
    assert sorted(together) == sorted(f"a{n}" for n in range(60)), "an example is used once an epoch, as either"
