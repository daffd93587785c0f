"""The stream of batches: reproducible, fair to every example, and one file at a time."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from command_line import write_rows

from polyrank.model.text.conversations import Conversations
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data import Corpus, Rows, draw_rows


@pytest.fixture
def corpora(tmp_path: Path) -> list[Corpus]:
    """Files of 60 and 20 examples, drawn from as 1 to 3."""
    return [corpus(tmp_path / "a.jsonl", 60, 1.0), corpus(tmp_path / "b.jsonl", 20, 3.0)]


def corpus(path: Path, count: int, weight: float) -> Corpus:
    rows = [{"context": ["hello"], "response": f"reply {n}", "dialogue": f"{path.stem}{n}"} for n in range(count)]
    none = np.zeros(count, bool)
    return Corpus(write_rows(path, rows), False, weight, Conversations(none.astype(np.uint64), ~none), held_out=none)


def drawn(stream: Iterator[Rows], count: int) -> list[list[str]]:
    """Names of the examples of each batch, those that lend their reply behind the others."""
    return [[example.dialogue for example in batch.examples + batch.others] for batch in islice(stream, count)]


def test_the_same_seed_gives_the_same_batches(corpora: list[Corpus]) -> None:
    first = drawn(draw_rows(corpora, 4, seed=5), 50)
    assert drawn(draw_rows(corpora, 4, seed=5), 50) == first
    assert drawn(draw_rows(corpora, 4, seed=6), 50) != first


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_the_processes_together_see_every_example_once_an_epoch(corpora: list[Corpus], n_ranks: int) -> None:
    streams = [draw_rows(corpora[:1], 2, seed=5, rank=rank, n_ranks=n_ranks, buffer=7) for rank in range(n_ranks)]
    for _ in range(3):
        shares = [drawn(stream, 60 // (2 * n_ranks)) for stream in streams]
        found = [name for share in shares for batch in share for name in batch]
        assert sorted(found) == sorted(f"a{n}" for n in range(60))


def test_the_processes_share_the_batches_that_one_process_would_draw(corpora: list[Corpus]) -> None:
    alone = drawn(draw_rows(corpora, 12, seed=5), 40)
    shares = [drawn(draw_rows(corpora, 4, seed=5, rank=rank, n_ranks=3), 40) for rank in range(3)]
    steps = [[name for share in step for name in share] for step in zip(*shares, strict=True)]
    assert steps == alone, "which are of one file each"


def test_the_processes_share_the_others_too(corpora: list[Corpus]) -> None:
    def others(extra_replies: int, rank: int, n_ranks: int) -> list[list[str]]:
        stream = draw_rows(corpora, 4, seed=5, extra_replies=extra_replies, rank=rank, n_ranks=n_ranks)
        return [[example.dialogue for example in batch.others] for batch in islice(stream, 40)]

    shares = [others(5, rank, 2) for rank in range(2)]
    assert [one + other for one, other in zip(*shares, strict=True)] == others(10, 0, 1)


@pytest.mark.parametrize("buffer", [1, 7, 59, 60, 61, 1000])
def test_every_example_comes_once_an_epoch(corpora: list[Corpus], buffer: int) -> None:
    stream = draw_rows(corpora[:1], 6, seed=0, buffer=buffer)
    epochs = [[name for batch in drawn(stream, 10) for name in batch] for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(f"a{n}" for n in range(60))
    if buffer > 1:
        assert len({tuple(epoch) for epoch in epochs}) == 3, "each is shuffled anew"


def test_a_small_buffer_shuffles_among_as_many(corpora: list[Corpus]) -> None:
    order = [name for batch in drawn(draw_rows(corpora[:1], 6, seed=0, buffer=7), 10) for name in batch]
    assert order != [f"a{n}" for n in range(60)]
    for place, name in enumerate(order[:50]):
        assert int(name[1:]) <= place + 7, "an example cannot come before it was read"


def test_a_batch_comes_from_one_file_and_files_by_weight(corpora: list[Corpus]) -> None:
    found = drawn(draw_rows(corpora, 4, seed=0), 2000)
    assert {len(batch) for batch in found} == {4}
    assert all(len({name[0] for name in batch}) == 1 for batch in found)
    counts = Counter(batch[0][0] for batch in found)
    assert counts["b"] / 2000 == pytest.approx(0.75, abs=0.04)  # four standard errors


def test_a_batch_larger_than_a_file_has_examples_twice(corpora: list[Corpus]) -> None:
    [batch] = drawn(draw_rows(corpora[1:], 45, seed=0), 1)
    assert sorted(Counter(batch).values()) == [2] * 15 + [3] * 5


def test_replies_of_others_come_from_the_same_file(corpora: list[Corpus]) -> None:
    for batch in islice(draw_rows(corpora, 4, seed=0, extra_replies=6), 50):
        assert (len(batch.examples), len(batch.others)) == (4, 6)
        assert len({example.dialogue[0] for example in batch.examples + batch.others}) == 1


def test_replies_of_others_leave_the_rows_as_they_are(corpora: list[Corpus]) -> None:
    """An epoch stays a pass over the examples; the others are drawn in an order of their own."""
    found = list(islice(draw_rows(corpora[:1], 6, seed=0, extra_replies=6), 10))
    rows = [example.dialogue for batch in found for example in batch.examples]
    others = [example.dialogue for batch in found for example in batch.others]
    assert sorted(rows) == sorted(others) == sorted(f"a{n}" for n in range(60))
    assert rows != others
    assert rows == [name for batch in drawn(draw_rows(corpora[:1], 6, seed=0), 10) for name in batch]


def test_where_no_others_are_wanted_the_file_is_read_once(
    corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = []
    original = Corpus.examples

    def examples(self: Corpus, selection: bool = False) -> Iterator[Dialogue]:
        readings.append(self.path)
        return original(self, selection)

    monkeypatch.setattr(Corpus, "examples", examples)
    next(draw_rows(corpora[:1], 4, seed=0))
    assert len(readings) == 1
    next(draw_rows(corpora[:1], 4, seed=0, extra_replies=1))
    assert len(readings) == 3
