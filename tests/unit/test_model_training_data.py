"""What training reads: files, what is kept of them, and the stream of rows."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import write_rows

from polyrank.model.errors import TrainingDataInvalid
from polyrank.model.text.conversations import Conversations
from polyrank.model.text.dialogues import Dialogue, DialoguesInvalid, Report
from polyrank.model.training import data as module
from polyrank.model.training.data import Corpus, Rows, draw_rows, survey

Lines = list[dict[str, Any]]


def read(
    path: Path, rows: Lines, *, every_turn: bool = False, max_rejected: float = 1.0, held_out: int = 1000
) -> tuple[Corpus, Report]:
    return survey(write_rows(path / "data.jsonl", rows), every_turn, max_rejected, held_out)


def turns(dialogues: int, each: int) -> Lines:
    """Dialogues of several examples."""
    return [
        {"context": [f"hello {d}", f"{n}"], "response": f"reply {d} {n}", "dialogue": f"d{d}"}
        for d in range(dialogues)
        for n in range(each)
    ]


def both(corpus: Corpus) -> tuple[list[Dialogue], list[Dialogue]]:
    return list(corpus.examples()), list(corpus.examples(selection=True))


def all_examples(path: Path, rows: Lines, **options: Any) -> list[Dialogue]:
    """Of training and selection, in the file's order."""
    fillers: Lines = [{"context": [f"filler {n}"], "response": f"filler {n}"} for n in range(10)]
    train, held_out = both(read(path, rows + fillers, **options)[0])
    found = [each for each in train + held_out if not each.response.startswith("filler")]
    return sorted(found, key=lambda each: (each.dialogue, len(each.conversation.turns)))


@pytest.mark.parametrize(("dialogues", "each"), [(4, 1), (4, 30), (10, 1), (40, 5), (300, 3)])
def test_no_dialogue_is_on_both_sides_and_none_is_lost(tmp_path: Path, dialogues: int, each: int) -> None:
    corpus, report = read(tmp_path, turns(dialogues, each))
    train, held_out = both(corpus)
    assert not {one.dialogue for one in train} & {one.dialogue for one in held_out}
    assert sorted(one.response for one in train + held_out) == sorted(row["response"] for row in turns(dialogues, each))
    assert (report.examples, report.held_out) == (len(train), len(held_out))
    assert min(len({one.dialogue for one in side}) for side in (train, held_out)) > 1, "one has no negatives"
    assert both(corpus) == (train, held_out), "every pass makes the same choice"
    assert (corpus.weight, corpus.path.name) == (len(train), "data.jsonl")


@pytest.mark.slow
def test_about_a_tenth_is_held_out_and_of_large_files_as_many_as_asked(tmp_path: Path) -> None:
    _, small = read(tmp_path, turns(1000, 1))
    assert small.held_out == pytest.approx(100, abs=40)  # four standard deviations
    large, report = read(tmp_path, turns(5000, 4))
    assert report.held_out == pytest.approx(1000, abs=260)  # of 5000 dialogues of four
    smaller, report = read(tmp_path, turns(5000, 4), held_out=200)
    assert report.held_out == pytest.approx(200, abs=116)
    assert {each.response for each in both(smaller)[1]} < {each.response for each in both(large)[1]}


def test_the_choice_follows_the_dialogue_and_not_its_place(tmp_path: Path) -> None:
    rows = turns(60, 2)
    _, forward = both(read(tmp_path, rows)[0])
    _, backward = both(read(tmp_path, rows[::-1])[0])
    assert sorted(each.response for each in forward) == sorted(each.response for each in backward)


def grown(*talks: list[str]) -> Lines:
    """A line for each reply of the second speaker, without a name."""
    return [{"context": talk[:at], "response": talk[at]} for talk in talks for at in range(1, len(talk), 2)]


@pytest.mark.parametrize("every_turn", [False, True])
def test_growing_contexts_of_unnamed_dialogues_are_on_one_side(tmp_path: Path, every_turn: bool) -> None:
    rows = grown(*([f"hi {n % 4}", "hello", *(f"turn {n} {m}" for m in range(6))] for n in range(100)))
    random.Random(0).shuffle(rows)
    corpus, report = read(tmp_path, rows, every_turn=every_turn)
    train, held_out = ({one.response.split()[1] for one in side if "turn" in one.response} for side in both(corpus))
    assert not train & held_out
    assert 20 <= report.held_out <= 30
    said = "no line names its dialogue; by how they begin 400 make 104 conversations, 0 stand alone"
    assert str(report).endswith(said), "the four greetings, too"


GREETINGS = ["hi", "hello", "good morning", "hey there"]


@pytest.mark.parametrize("row", [
    lambda n: {"context": [GREETINGS[n % 4]], "response": f"reply {n}"},
    lambda n: {"context": [GREETINGS[n % 4], f"question {n}"], "response": f"reply {n}"},
    lambda n: {"context": [GREETINGS[n % 4], "hello, how can I help?", f"question {n}"], "response": f"reply {n}"},
], ids=["greeting", "question", "answered"])  # fmt: skip
@pytest.mark.parametrize("count", [120, 1200])
def test_four_greetings_are_not_four_dialogues(tmp_path, row: Callable[[int], dict[str, Any]], count: int) -> None:
    corpus, report = read(tmp_path, [row(n) for n in range(count)])
    assert (report.examples, report.held_out) == (0.9 * count, 0.1 * count)
    assert len({one.dialogue for side in both(corpus) for one in side}) == count
    assert str(report).endswith("no line names its dialogue; by how they begin each stands alone")


def test_a_hundred_and_twenty_dialogues_of_one_greeting_can_be_trained_on(tmp_path: Path) -> None:
    for talk in (["hello"], ["hello", "how can I help?"]):
        rows = [{"context": [*talk, f"question {n}"], "response": f"reply {n}"} for n in range(120)]
        assert read(tmp_path, rows)[1].held_out == 12
    rows = grown(*(["hello", "how can I help?", f"question {n}", f"reply {n}"] for n in range(120)))
    corpus, report = read(tmp_path, rows)
    assert (report.examples, report.held_out) == (109, 12)
    assert len({one.dialogue for side in both(corpus) for one in side}) == 120


def test_a_huge_dialogue_is_trained_on(tmp_path: Path) -> None:
    rows = [{"context": [f"h{n}"], "response": f"r{n}", "dialogue": "huge"} for n in range(500)]
    rows += [{"context": [f"s{n}"], "response": f"r{n}", "dialogue": f"small {n % 50}"} for n in range(100)]
    corpus, report = read(tmp_path, rows)
    assert 50 <= report.held_out <= 60
    assert all(one.dialogue != "huge" for one in corpus.examples(selection=True))


def test_two_usual_dialogues_are_held_out_where_no_more_than_one_is_asked_for(tmp_path: Path) -> None:
    brief = [{"context": [name], "response": name, "dialogue": name} for name in ("brief", "short")]
    corpus, report = read(tmp_path, [*turns(100, 15), *brief], held_out=20)
    assert 16 <= report.held_out <= 30, "not the two smallest, by which nothing can be told"
    assert len({one.dialogue for one in corpus.examples(selection=True)}) == 2


def test_more_than_a_tenth_is_held_out_only_for_two_whole_dialogues_and_is_told(tmp_path: Path) -> None:
    rows = [*turns(4, 30), {"context": ["b"], "response": "b", "dialogue": "brief"}]
    corpus, report = read(tmp_path, rows)
    assert {one.dialogue for one in corpus.examples(selection=True)} >= {"brief"}, "the smallest"
    assert report.held_out == 31
    said = "90 examples, 31 held out (more than a tenth, since two whole dialogues are needed to select by)"
    assert str(report) == said
    assert "more than" not in str(read(tmp_path, turns(20, 3))[1])


def test_every_other_turn_of_the_replying_side_is_an_example(tmp_path: Path) -> None:
    row = {"context": ["a", "b", "c", "d", "e"], "persona": ["p"], "response": "f", "dialogue": "x"}
    found = all_examples(tmp_path, [row], every_turn=True)
    assert [([turn.text for turn in one.conversation.turns], one.response) for one in found] == [
        (["a"], "b"),
        (["a", "b", "c"], "d"),
        (["a", "b", "c", "d", "e"], "f"),
    ]
    assert {one.conversation.persona for one in found} == {("p",)}
    assert {one.dialogue for one in found} == {"x"}
    assert len(all_examples(tmp_path, [row])) == 1


def test_of_messages_those_of_the_assistant_are_examples(tmp_path: Path) -> None:
    said = [("system", "be short"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("tool", "d"), ("assistant", "e")]
    context = [{"role": role, "content": text, "refusal": None} for role, text in [*said, ("user", "f")]]
    found = all_examples(tmp_path, [{"context": context, "response": "g"}], every_turn=True)
    assert [(len(one.conversation.turns), one.response) for one in found] == [(2, "b"), (5, "e"), (7, "g")]


def test_replies_that_are_marked_as_not_right_are_learnt_from_nowhere(tmp_path: Path) -> None:
    said = [("user", "a", 1), ("assistant", "b", 0), ("user", "c", 0), ("assistant", "d", 1), ("user", "e", 1)]
    context = [{"role": role, "content": text, "weight": weight} for role, text, weight in said]
    rows = [
        {"context": context, "response": "f"},
        {"context": ["g"], "response": "bad", "label": False},
        {"context": ["h"], "response": "worse", "rejected": True},
        {"context": ["i"], "response": "good", "rejected": "bad"},
    ]
    found = all_examples(tmp_path, rows, every_turn=True)
    assert sorted(one.response for one in found) == ["d", "f", "good"]
    assert [one.negatives for one in found if one.response == "good"] == [("bad",)]
    fillers: Lines = [{"context": [f"filler {n}"], "response": f"filler {n}"} for n in range(10)]
    _, report = read(tmp_path, rows + fillers, max_rejected=0.0)
    assert report.bad == 0
    assert "1 dropped: the reply is marked as not right (label: false) (first in line 2)" in str(report)


def test_a_dialogue_that_the_replying_side_began_has_no_example_of_its_first_turn(tmp_path: Path) -> None:
    found = all_examples(tmp_path, [{"context": ["a", "b", "c", "d"], "response": "e"}], every_turn=True)
    assert [one.response for one in found] == ["c", "e"]


def test_what_was_chosen_for_the_last_reply_stays_with_it(tmp_path: Path) -> None:
    row = {"context": ["a", "b", "c"], "response": "d", "candidates": ["d", "z"], "label": 0, "negatives": ["y"]}
    first, last = all_examples(tmp_path, [row], every_turn=True)
    assert (first.candidates, first.label, first.negatives) == ((), -1, ())
    assert (last.candidates, last.label, last.negatives) == (("d", "z"), 0, ("y",))


@pytest.mark.parametrize("context", [["", "b", "c"], [" ", "b", "\t", "d", "e"], ["a", " ", "c"]])
def test_turns_without_text_make_no_examples(tmp_path: Path, context: list[str]) -> None:
    found = all_examples(tmp_path, [{"context": context, "response": "z"}], every_turn=True)
    assert found[-1].response == "z"
    for one in found:
        assert one.response.strip()
        assert any(turn.text.strip() for turn in one.conversation.turns)


def test_a_negative_that_equals_the_gold_reply_is_none(tmp_path: Path) -> None:
    row = {"context": ["a"], "response": "Yes,  please", "negatives": ["no", "yes, PLEASE ", "yes please"]}
    [found] = all_examples(tmp_path, [row])
    assert found.negatives == ("no", "yes please")


def write_bad(path: Path) -> Path:
    lines = [f'{{"context": ["hello {n}"], "response": "r{n}"}}' for n in range(20)]
    lines[2:2] = ["not JSON", "", '{"context": ["a"]}', '{"context": [], "response": "x"}', "nor this", lines[0]]
    file = path / "bad.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_what_is_dropped_is_told_by_reason_with_its_first_line(tmp_path: Path) -> None:
    corpus, report = survey(write_bad(tmp_path), False, 0.5, 1000)
    assert report.dropped.total() == 5
    text = str(report)
    assert text.startswith(f"{report.examples} examples, {report.held_out} held out; 2 dropped: the line is not JSON")
    assert "(first in line 3)" in text
    assert "1 dropped: response must be a text (first in line 5)" in text
    assert "1 dropped: the context is empty; give at least one turn with text (first in line 6)" in text
    assert "1 dropped: repeats another example (first in line 8)" in text
    assert sum(map(len, both(corpus))) == report.examples + report.held_out == 20


def test_a_pair_with_another_class_is_no_repeat(tmp_path: Path) -> None:
    rows = [{"context": [f"hello {n}"], "response": "r", "label": "yes"} for n in range(20)]
    rows += [rows[3], {**rows[3], "label": "no"}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _, report = survey(file, False, 0.5, 1000)
    assert "1 dropped: repeats another example (first in line 21)" in str(report)
    assert "1 dropped: another line gives these texts another class (first in line 22)" in str(report)
    assert report.bad == 1


def test_too_many_bad_lines_are_refused(tmp_path: Path) -> None:
    path = write_bad(tmp_path)
    with pytest.raises(TrainingDataInvalid, match=r"bad\.jsonl: too many bad lines: .*not JSON.*raise --max-rejected"):
        survey(path, False, 0.1, 1000)
    survey(path, False, 4 / 25, 1000)  # four of 25 lines, of which one repeats another
    with pytest.raises(TrainingDataInvalid, match="too many bad lines"):
        survey(path, False, 4 / 25 - 0.001, 1000)


def test_bad_lines_are_a_share_of_lines_and_not_of_the_examples_in_them(tmp_path: Path) -> None:
    talk = [f"t{n}" for n in range(9)]
    lines = [json.dumps({"context": [f"d{d}", *talk], "response": "bye"}) for d in range(18)]
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join([*lines, "not JSON", "", "nor this"]) + "\n")
    with pytest.raises(TrainingDataInvalid, match="too many bad lines"):
        survey(path, True, 0.05, 1000)
    _, report = survey(path, True, 2 / 20, 1000)
    assert (report.lines, report.examples + report.held_out) == (20, 18 * 5)


def test_examples_with_negatives_are_counted_on_the_training_side(tmp_path: Path) -> None:
    rows = turns(60, 2)
    for row in rows[::3]:
        row["negatives"] = ["no"]
    rows[1]["negatives"] = [rows[1]["response"]]  # which is none
    corpus, report = read(tmp_path, rows)
    train, held_out = both(corpus)
    assert report.with_negatives == sum(bool(each.negatives) for each in train)
    assert 0 < report.with_negatives < 40
    assert any(each.negatives for each in held_out)
    assert read(tmp_path, turns(60, 2))[1].with_negatives == 0


def test_repeats_are_left_out_but_are_no_bad_lines(tmp_path: Path) -> None:
    """A file with a line a turn holds, with every turn, each example as often as its dialogue goes on."""
    talk = [f"t{n}" for n in range(8)]
    rows = [{"context": [f"d{d}", *talk[:at]], "response": talk[at]} for d in range(10) for at in (0, 2, 4, 6)]
    corpus, report = read(tmp_path, rows, every_turn=True, max_rejected=0.0)
    assert report.examples + report.held_out == 40 == sum(map(len, both(corpus)))
    assert report.dropped == {"repeats another example": 10 * (1 + 2 + 3)}


@pytest.mark.parametrize("rows", [
    [{"context": ["a"], "response": "b", "dialogue": "one"}],
    [{"context": ["a"], "response": f"b{n}", "dialogue": "one"} for n in range(30)],
    turns(3, 20),
    [],
], ids=["one example", "one name", "three dialogues", "none"])  # fmt: skip
def test_a_single_dialogue_is_refused_and_so_are_too_few(tmp_path: Path, rows: Lines) -> None:
    with pytest.raises(TrainingDataInvalid, match="needs at least four dialogues, two of them to select by"):
        read(tmp_path, rows)


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(DialoguesInvalid, match="no such file"):
        survey(tmp_path / "missing.jsonl", False, 0.0, 1000)
    (tmp_path / "damaged.jsonl.gz").write_bytes(b"no gzip at all")
    with pytest.raises(DialoguesInvalid, match=r"damaged\.jsonl\.gz: cannot be read to its end"):
        survey(tmp_path / "damaged.jsonl.gz", False, 0.0, 1000)


@pytest.mark.parametrize("every_turn", [False, True])
def test_what_is_kept_is_what_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_turn: bool) -> None:
    rows = turns(20, 3)
    rows += [{key: value for key, value in row.items() if key != "dialogue"} for row in turns(30, 1)]
    monkeypatch.setattr(module, "SHUFFLE_BUFFER", 40)
    streamed, of_streamed = read(tmp_path, rows, every_turn=every_turn)
    monkeypatch.undo()
    kept, of_kept = read(tmp_path, rows, every_turn=every_turn)
    before = both(streamed), list(streamed.replies())
    (tmp_path / "data.jsonl").unlink()
    assert streamed.cached_examples is None
    assert (both(kept), list(kept.replies())) == before
    assert of_kept == of_streamed


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


def test_where_no_others_are_wanted_the_file_is_read_once(corpora: list[Corpus], monkeypatch) -> None:
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
