"""What a log of feedback teaches, as files for training."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from command_line import call, write_rows
from feedback_logs import use, write_log
from service_fakes import build_store

from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.training.data import hold_labels, read_labels, survey
from polyrank.service.feedback.export import LABELS, LATER, TRAIN, ExportTally, export
from polyrank.service.feedback.records import Shown, Use

GONE = "20200101T000000000000-00000000"
_POOL = [Candidate(name, f"reply {name}") for name in "abcdefgh"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("store")
    return root, build_store(root, _POOL)


@pytest.fixture
def store(built: tuple[Path, str], tmp_path: Path) -> Path:
    """A store with the pool and no log."""
    root, _ = built
    for path in (root / "feedback").glob("*"):
        path.unlink()
    return root


def _lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def _exported(
    store: Path, output: Path, uses: Iterable[Use], golden: Iterable[Path] = ()
) -> tuple[ExportTally, list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Export a log; returns also the lines of the three files."""
    done = export(write_log(store, uses), output, golden=list(golden))
    return done, *(_lines(output / name) for name in (TRAIN, LATER, LABELS))


def test_a_chosen_reply_is_right_and_those_above_it_are_weakly_wrong(store: Path, tmp_path: Path) -> None:
    done, train, later, labels = _exported(store, tmp_path / "out", [use(1, "Hi", ("chosen", "c"), shown="abcd")])
    assert train == [
        {"context": ["Hi"], "response": "reply c", "negatives": ["reply a", "reply b"], "dialogue": "r00001"}
    ]
    assert (later, labels) == ([], []), "one conversation is too few to keep some apart"
    assert (done.rankings, done.with_feedback, done.files[TRAIN]) == (1, 1, {"chosen": 1})


@pytest.mark.parametrize(("events", "response", "negatives"), [
    ([("edited", "b", "better")], "better", "a"),
    ([("chosen", "b"), ("edited", "b", "better")], "better", "a"),
    ([("written", None, "mine")], "mine", ""),
    ([("none_good",), ("written", None, "mine")], "mine", "abc"),
    ([("none_good",), ("chosen", "b")], "reply b", "a"),
    ([("written", None, "mine"), ("down", "b")], "mine", "b"),
    ([("chosen", "c"), ("up", "a")], "reply c", "b"),
    ([("up", "b")], "reply b", ""),
    ([("up", "b"), ("down", "a")], "reply b", "a"),
    ([("down", "b"), ("up", "b")], "reply b", ""),
    ([("chosen", "h")], "reply h", ""),  # not among those recorded, so nobody knows what stood above it
    ([("chosen", "never shown")], None, ""),
    ([("chosen", None, "never shown")], None, ""),
    ([("chosen", "b"), ("none_good",)], None, ""),
    ([("chosen", "b"), ("down", "b")], None, ""),
    ([("up", "b"), ("down", "b")], None, ""),
    ([("down", "a")], None, ""),
    ([("none_good",), ("up", "b")], None, ""),
    ([("written", None, " ")], None, ""),
    ([("handed_over",), ("resolved",)], None, ""),
    ([], None, ""),
])  # fmt: skip
def test_what_people_did_says_what_is_right(
    events: list[Any], response: str | None, negatives: str, store: Path, tmp_path: Path
) -> None:
    _, train, _, _ = _exported(store, tmp_path / "out", [use(1, "Hi", *events, below=("h",))])
    expected = [] if response is None else [(response, [f"reply {name}" for name in negatives])]
    assert [(each["response"], each["negatives"]) for each in train] == expected


@pytest.mark.parametrize(("events", "label"), [
    ([("chosen", "a")], "right"), ([("chosen", "b")], "wrong"), ([("chosen", "h")], "wrong"),
    ([("chosen", "never shown")], None), ([("edited", "b", "better")], "wrong"),
    ([("written", None, "mine")], "wrong"), ([("none_good",)], "wrong"), ([("up", "a")], "right"),
    ([("down", "a")], "wrong"), ([("chosen", "b"), ("up", "a")], "right"), ([("edited", "a", "better")], None),
    ([("edited", None, "better")], None), ([("up", "b")], None), ([("handed_over",)], None),
])  # fmt: skip
def test_what_people_did_labels_the_first_reply(events: list[Any], label: str | None, store: Path, tmp_path) -> None:
    before = [use(number, f"turn {number}", ("chosen", "a")) for number in range(4)]
    _, _, _, labels = _exported(store, tmp_path / "out", [*before, use(9, "Hi", *events, below=("h",))])
    assert [(each["response"], each["label"]) for each in labels] == ([("reply a", label)] if label else [])


def test_the_newest_conversations_judge_and_do_not_train(store: Path, tmp_path: Path) -> None:
    persona = Conversation((Turn("THE  bill", "user"),), ("kind",))
    uses = [
        use(1, "the bill", ("written", None, "old")),  # is asked again in a conversation that is later
        *(use(number, f"turn {number}", ("written", None, f"said {number}")) for number in range(2, 9)),
        use(9, "beginning", ("chosen", "a"), conversation="long"),
        use(10, persona, ("chosen", "b"), conversation="newer"),
        use(11, "turn 11", ("edited", "a", "said 11"), conversation="newer"),
        use(12, "ending", ("written", None, "said 12"), conversation="long"),
    ]
    done, train, later, labels = _exported(store, tmp_path / "out", uses)
    assert [each["response"] for each in train] == [f"said {number}" for number in range(2, 9)]
    assert [(each["response"], each["dialogue"]) for each in later] == [("said 11", "newer"), ("said 12", "long")]
    assert [(each["context"], each["label"]) for each in labels] == [
        (["beginning"], "right"),
        ([{"role": "user", "content": "THE  bill"}], "wrong"),
        (["ending"], "wrong"),
    ]
    assert labels[1]["persona"] == ["kind"]
    assert done.files[LATER] == {"edited": 1, "written": 1}
    assert done.files[LABELS] == {"right": 1, "wrong": 2}
    assert sorted(done.left_out.values()) == [1, 2], "a context that is kept, two chosen replies"


def test_what_everybody_asks_trains(store: Path, tmp_path: Path) -> None:
    """A context of both sides stays where it is more frequent."""
    asked = ["often", "often", "once", "a", "b", "c", "d", "e", "often", "once"]
    uses = [use(number, said, ("written", None, f"said {number}")) for number, said in enumerate(asked)]
    done, train, later, labels = _exported(store, tmp_path / "out", uses)
    assert [each["response"] for each in train] == [f"said {number}" for number in (0, 1, 3, 4, 5, 6, 7)]
    assert [each["response"] for each in later] == ["said 9"]
    assert [each["context"] for each in labels] == [["often"], ["once"]], "servers are asked both"
    assert list(done.left_out.values()) == [1, 1]


def test_a_golden_set_does_not_train(store: Path, tmp_path: Path) -> None:
    """Nor as it is recorded, without what tells who somebody is."""
    rows = [{"context": ["Hello", "The  BILL"], "response": "x"}, {"context": ["I am jo@x.example"], "response": "x"}]
    golden = write_rows(tmp_path / "golden.jsonl", rows)
    said = Conversation.of(["hello", "the bill"])
    uses = [use(1, said, ("chosen", "a")), use(2, "the bill", ("chosen", "a")), use(3, "I am [mail]", ("chosen", "a"))]
    done, train, _, _ = _exported(store, tmp_path / "out", uses, [golden])
    assert [each["context"] for each in train] == [["the bill"]]
    assert done.left_out == {"examples whose context is in a golden set": 2}


def test_written_replies_come_first_and_chosen_ones_do_not_outweigh_them(store: Path, tmp_path: Path) -> None:
    uses = [use(number, f"popular {number}", ("chosen", "a")) for number in range(60)]
    uses += [use(60 + number, f"long {number}", ("chosen", "b"), conversation="long") for number in range(7)]
    uses += [use(70, "long 6", ("chosen", "b")), use(71, "rare", ("written", None, "mine"))]
    uses += [use(80 + number, f"later {number}", ("chosen", "c")) for number in range(20)]  # a fifth and more
    done, train, _, _ = _exported(store, tmp_path / "out", uses)
    assert [each["context"] for each in train[:2]] == [["rare"], ["popular 10"]], "of those above 50 the newest"
    assert [each["context"] for each in train[51:]][:5] == [[f"long {number}"] for number in (1, 2, 3, 4, 5)]
    assert done.files[TRAIN] == {"written": 1, "chosen": 60}, "four of those later ones"


def test_a_reply_that_was_right_elsewhere_is_no_negative(store: Path, tmp_path: Path) -> None:
    uses = [use(1, "Hi", ("chosen", "c")), use(2, "hi ", ("chosen", "a")), use(3, "hi", ("chosen", "c"), shown="bc")]
    done, train, _, _ = _exported(store, tmp_path / "out", uses)
    assert [(each["response"], each["negatives"]) for each in train] == [("reply a", []), ("reply c", ["reply b"])]
    assert done.left_out == {"examples that repeat another one": 1}


def test_equal_logs_give_equal_bytes(store: Path, tmp_path: Path) -> None:
    uses = [use(number, f"turn {number % 30}", ("chosen", "abc"[number % 3])) for number in range(50)]
    _exported(store, tmp_path / "one", uses)
    _exported(store, tmp_path / "two", reversed(uses))
    for name in (TRAIN, LATER, LABELS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_texts_are_those_that_were_shown(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first, second = build_store(store, _POOL), build_store(store, [Candidate("a", "another a"), *_POOL[2:]])
    uses = [
        use(1, "one", ("chosen", "a"), generation=first),
        use(2, "two", ("chosen", "a"), generation=second),
        use(3, "three", ("chosen", "c"), generation=GONE),  # the active one has no b
    ]
    done, train, _, _ = _exported(store, tmp_path / "out", uses)
    assert [(each["response"], each["negatives"]) for each in train] == [
        ("reply a", []),
        ("another a", []),
        ("reply c", ["another a"]),
    ]
    assert done.left_out == {"wrong replies whose text is in no generation any more": 1}


def test_texts_of_candidates_that_were_sent_along_are_in_the_log(store: Path, tmp_path: Path) -> None:
    shown = (Shown("x", 0.9, "sent along"), Shown(None, 0.8, "nameless"), Shown("h", 0.7))
    uses = [
        use(1, "one", ("chosen", "h"), shown=shown),
        use(2, "two", ("chosen", None, "nameless"), shown=shown),
        use(3, "three", ("chosen", "a"), shown=shown, below=("a",)),  # further below; the pool's "a" may be another one
    ]
    done, train, _, _ = _exported(store, tmp_path / "out", uses)
    assert [(each["response"], each["negatives"]) for each in train] == [
        ("reply h", ["sent along", "nameless"]),
        ("nameless", ["sent along"]),
    ]
    assert done.left_out == {"right replies that were sent along and stood below rank 20": 1}


def test_a_log_without_texts_teaches_nothing(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no recorded rankings; polyrank serve --feedback texts records them"):
        export(store, tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"the 1 rankings recorded in .* are without texts; polyrank serve"):
        export(write_log(store, [use(1, None, ("chosen", "a"))]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rankings_without_texts_are_counted(store: Path, tmp_path: Path) -> None:
    """So are those of which a function of the operator has left nothing; no command could read them."""
    blank = Conversation((Turn("", "user"), Turn(" ")))
    uses = [use(1, None, ("chosen", "a")), use(2, None), use(3, blank, ("chosen", "a")), use(4, "Hi", ("chosen", "a"))]
    done, train, _, _ = _exported(store, tmp_path / "out", uses)
    assert len(train) == 1
    assert done.left_out == {"rankings that were recorded without texts": 2}


def test_the_command_says_what_it_wrote(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    write_log(store, [use(1, "Hi", ("chosen", "b")), use(2, "Hi", ("written", None, "mine")), use(3, "Hi")])
    out = tmp_path / "out"
    outcome = call(capsys, "feedback", "export", "--store", store, "--output", out)
    assert outcome.out.splitlines() == [
        "3 rankings, 2 of them with feedback", f"{out}/train.jsonl: 2 examples (1 chosen, 1 written)",
        f"{out}/later.jsonl: 0 examples", f"{out}/labels.jsonl: 0 examples",
    ]  # fmt: skip
    again = call(capsys, "feedback", "export", "--store", store, "--output", out)
    assert (again.status, again.out) == (2, "")
    assert again.err == f"polyrank: --output {out} is not an empty directory; name another one\n"
    told = call(capsys, "feedback", "export", "--store", store, "--output", tmp_path / "more", "--json").result
    assert told["files"] == {"train.jsonl": {"chosen": 1, "written": 1}, "later.jsonl": {}, "labels.jsonl": {}}
    assert told["left_out"] == []


def test_training_reads_what_was_exported(store: Path, tmp_path: Path) -> None:
    uses = [use(number, f"turn {number}", ("chosen", "abc"[number % 3])) for number in range(40)]
    _exported(store, tmp_path / "out", uses)
    corpus, found = survey(tmp_path / "out" / TRAIN, False, 0.0, 1000)
    assert found.kept + found.held_out == len({each.dialogue for each in corpus.examples()}) + found.held_out == 32
    assert found.with_negatives
    assert not hold_labels([tmp_path / "out" / TRAIN])
    assert hold_labels([tmp_path / "out" / LABELS])
    labels, _ = read_labels([tmp_path / "out" / LABELS], 0.0, lambda *_: None)
    assert [each.category for each in labels] == ["right" if n % 3 == 0 else "wrong" for n in range(32, 40)]
