"""ParlAI's text files and the Ubuntu Dialogue Corpus."""

import csv
from io import StringIO

import pytest
from foreign import CONVAI2, PARLAI, UBUNTU_TRAIN, UBUNTU_VALID

from polyrank.index_builder.convert.corpora import is_parlai, is_ubuntu, parlai_examples, ubuntu_example
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue


def said(*texts: str, persona: tuple[str, ...] = ()) -> Conversation:
    return Conversation(tuple(map(Turn, texts)), persona)


def parlai(content: str) -> list[Dialogue | str]:
    found = parlai_examples(content.splitlines(keepends=True), "f")
    return [str(each) if isinstance(each, RowError) else each for _, each in found]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_convai2(end: str) -> None:
    tea, hi = ("i like tea.",), "hi , how are you ?"
    five = said("hello", "hey there", persona=("i am five.",))
    assert parlai(CONVAI2.replace("\n", end)) == [
        Dialogue(said(hi, persona=tea), "fine .", ("no .", "fine ."), 1, dialogue="f:1"),
        Dialogue(said(hi, "fine .", "good", persona=tea), "what's up ?", ("a", "b", "what's up ?"), 2, dialogue="f:1"),
        "a reply with nothing said before it",
        Dialogue(five, "yo", dialogue="f:2"),
        Dialogue(five, "hey", dialogue="f:2"),
    ]


def test_the_newer_form_of_parlai() -> None:
    cat = ("i am a cat",)
    assert parlai(PARLAI) == [
        Dialogue(said("hi", persona=cat), "meow", ("woof", "meow"), 1, dialogue="f:1"),
        Dialogue(said("hi", "meow", "bye", persona=cat), "see you", dialogue="f:1"),
        Dialogue(said("new"), "indeed", dialogue="f:2"),
    ]


def test_what_a_line_of_parlai_cannot_hold() -> None:
    line = "text:a\\tb\\nc\tlabels:x__PIPE__y|z\tlabel_candidates:z|x__PIPE__y\n"
    (said_first, first), (_, second) = [
        (each.conversation, each) for each in parlai(line) if isinstance(each, Dialogue)
    ]
    assert [turn.text for turn in said_first.turns] == ["a\tb", "c"]
    assert (first.response, second.response, first.candidates) == ("x|y", "z", ("z", "x|y"))


def test_lines_without_an_answer_are_part_of_the_context() -> None:
    assert parlai("1 Sam went out.\n2 Where is Sam?\tout\t1\thall|bath\nnonsense\n") == [
        Dialogue(said("Sam went out.", "Where is Sam?"), "out", ("out", "hall", "bath"), 0, dialogue="f:1"),
        "the line is not ParlAI's: it has neither a number nor a field text:",
    ]


def test_which_lines_begin_a_file_of_parlai() -> None:
    assert is_parlai(CONVAI2)
    assert is_parlai(PARLAI)
    assert not is_parlai("10 text,id")
    assert not is_parlai("text:x")


def test_version_two_of_ubuntu() -> None:
    train, valid = (list(csv.DictReader(StringIO(text))) for text in (UBUNTU_TRAIN, UBUNTU_VALID))
    assert all(map(is_ubuntu, [*train, *valid]))
    assert ubuntu_example(train[0]) == Dialogue(said("hello anyone ?", 'yes , "sure"'), "i see")
    assert str(ubuntu_example(train[1])) == "the utterance does not follow: its label is not 1"
    assert ubuntu_example(valid[0]) == Dialogue(said("hi"), "yo", ("yo", "d0", "d1"), 0)


def test_version_one_of_ubuntu() -> None:
    row = {"context": "anyone ? __EOS__ yes __EOS__ </s>", "response": "i see __EOS__", "flag": "1"}
    assert ubuntu_example(row) == Dialogue(said("anyone ?", "yes"), "i see")


def test_rows_of_other_tables() -> None:
    assert not is_ubuntu({"context": "a", "response": "b"})
    assert str(ubuntu_example({"a": "b"})).startswith("the row lacks Context")
