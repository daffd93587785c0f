"""Which tokens of a conversation are kept, in which order, and how cuts are reported."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tiny import CLS, SEP, UNK, word_ids, write_base

from polyrank.model.config import AssemblyConfig, ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import COUNTED_LETTERS, Assembler, Conversation, Truncation, Turn
from polyrank.model.text.sequences import Pairs
from polyrank.model.text.tokenizer import Tokenizer

Build = Callable[..., Assembler]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_base(tmp_path_factory.mktemp("text") / "base", seed=0) / "tokenizer.json")


@pytest.fixture
def build(tokenizer: Tokenizer) -> Build:
    """Make an assembler with room for `body` tokens of context between [CLS] and [SEP]."""

    def make(body: int = 10, candidate: int = 8, **assembly: object) -> Assembler:
        return Assembler(
            tokenizer,
            ModelConfig(
                architecture="bi",
                base_name="",
                max_context_tokens=body + 2,
                max_candidate_tokens=candidate,
                assembly=AssemblyConfig(**assembly),
            ),
        )

    return make


def ids(text: str) -> list[int]:
    """Return the ids of words; `|` stands for the separator."""
    return [token for word in text.split() for token in ([SEP] if word == "|" else word_ids(word))]


def wrapped(text: str) -> list[int]:
    return [CLS, *ids(text), SEP]


def said(*turns: str | Turn, persona: tuple[str, ...] = ()) -> Conversation:
    return Conversation.of(turns, persona)


def test_one_text_is_one_turn(build: Build) -> None:
    assert build().context(Conversation.of("w1 w2"))[0] == wrapped("w1 w2")


def test_separators_are_the_checkpoints(build: Build) -> None:
    assembler = build(12, turn_separator="w38 w39", persona_separator="", persona_marker="[UNK]")
    made = assembler.context(said("w1", "w2", persona=("w3", "w4")))[0]
    assert made == [CLS, UNK, *ids("w3 w4 w1 w38 w39 w2"), SEP]


def test_blank_turns_and_facts_do_not_count(build: Build) -> None:
    made = build().context(said("", "w1", " \t", "w2", "\n", persona=("", "  ")))
    assert made == (wrapped("w1 | w2"), Truncation())


def test_a_separator_longer_than_the_personas_half(build: Build) -> None:
    assembler = build(6, persona_separator="w30 w31 w32 w33 w34")
    made, truncation = assembler.context(said("w1 w2 w3", persona=("w9 w8",)))
    assert made == wrapped("w30 w31 w32 w1 w2 w3")
    assert truncation == Truncation(tokens=4)


@pytest.mark.parametrize("context", ["", " ", [], ["", "\n"], [Turn(" ", "user")]])
def test_nothing_said_is_refused(context: str | list[str | Turn]) -> None:
    with pytest.raises(InvalidInput, match="context is empty"):
        Conversation.of(context)


def test_candidates_lose_their_end(build: Build) -> None:
    texts = ["w1 w2 w3 w4 w5 w6", "w1 w2 w3 w4 w5 w6 w7", "w1", " ".join(f"w{n}" for n in range(30))]
    made, cut = build(candidate=8).candidates(texts)
    assert made == [wrapped("w1 w2 w3 w4 w5 w6")] * 2 + [wrapped("w1"), wrapped("w0 w1 w2 w3 w4 w5")]
    assert cut == 2


def test_no_candidates(build: Build) -> None:
    assert build().candidates([]) == ([], 0)


def test_pairs_share_the_context(build: Build) -> None:
    made, truncation = build().pairs(said("w1", "w2", persona=("w9",)), ["w3 w4", "w5"])
    assert made == Pairs([wrapped("w9 | w1 | w2")], [[*ids("w3 w4"), SEP], [*ids("w5"), SEP]], [0, 0])
    assert truncation == Truncation()


def test_pairs_are_cut_on_either_side(build: Build) -> None:
    long = " ".join(f"w{n}" for n in range(20))
    made, truncation = build(10, candidate=8).pairs(said("w30", long), [long, "w1", "w1 w2 w3 w4 w5 w6 w7"])
    assert made.contexts == [wrapped(" ".join(f"w{n}" for n in range(10, 20)))]
    assert made.candidates == [[*range(4, 11), SEP], [5, SEP], [*range(5, 12), SEP]]
    assert truncation == Truncation(turns=1, tokens=10, candidates=1)


def test_a_residual_cross_encoders_pairs_are_wrapped_as_each_is_alone(tokenizer: Tokenizer) -> None:
    long = " ".join(f"w{n}" for n in range(20))
    sizes = {"max_context_tokens": 12, "max_candidate_tokens": 8}
    assembler = Assembler(tokenizer, ModelConfig(architecture="cross", base_name="", residual=True, **sizes))
    made, truncation = assembler.pairs(said("w30", long), [long, "w1", "w1 w2 w3 w4 w5 w6 w7"])
    assert made.contexts == [wrapped(" ".join(f"w{n}" for n in range(10, 20)))] == [assembler.context(said(long))[0]]
    assert made.candidates == [wrapped(text) for text in ("w0 w1 w2 w3 w4 w5", "w1", "w1 w2 w3 w4 w5 w6")]
    assert (made.owners, made.prefix) == ([0, 0, 0], 1)
    assert truncation == Truncation(turns=1, tokens=10, candidates=2)
    assert assembler.pairs(said("w1"), []) == (Pairs([wrapped("w1")], [], [], prefix=1), Truncation())


@pytest.mark.parametrize("name", ["[SEP]", "[CLS]", "[PAD]"])
def test_a_special_token_typed_by_a_user_is_text(build: Build, name: str) -> None:
    """The tiny vocabulary knows neither the brackets nor the name: three unknown words."""
    assembler = build(20)
    text = f"w1 {name} w2"
    plain = [*ids("w1"), UNK, UNK, UNK, *ids("w2")]
    assert assembler.context(said(text))[0] == [CLS, *plain, SEP]
    assert assembler.context(said("w3", persona=(text,)))[0] == [CLS, *plain, SEP, *ids("w3"), SEP]
    assert assembler.candidates([f"w1 {name}"])[0] == [[CLS, *ids("w1"), UNK, UNK, UNK, SEP]]


class Counting(Tokenizer):
    """Counts the texts it encodes."""

    texts = letters = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.texts += len(texts)
        self.letters += sum(map(len, texts))
        return super().encode(texts)

    def words(self, text: str) -> tuple[list[int], list[int]]:
        self.letters += len(text)
        return super().words(text)


def test_a_conversation_of_thousands_of_turns_costs_what_is_kept(tmp_path: Path) -> None:
    tokenizer = Counting(write_base(tmp_path / "base", seed=0) / "tokenizer.json")
    assembler = Assembler(tokenizer, ModelConfig(architecture="bi", base_name="", max_context_tokens=102))
    turns = [f"w{n % 40} w{n % 7}" for n in range(5000)]
    tokenizer.texts = 0
    made, truncation = assembler.context(said(*turns))
    kept = 33
    assert made == wrapped(" | ".join(turns[-kept:]))
    assert truncation == Truncation(turns=5000 - kept)
    assert tokenizer.texts <= 3 * kept


def test_few_tokens_of_many_letters_do_not_end_the_search(build: Build) -> None:
    """A long unknown word is one token and spaces are none, so a text of many characters may still fit."""
    made = build().context(said("w1", "x" * 100_000, "w2" + " " * 100_000 + "w3", "w4"))
    assert made == ([CLS, *ids("w1 |"), UNK, *ids("| w2 w3 | w4"), SEP], Truncation())


LONG = "w1 w2 w3 " * 1_000_000


@pytest.mark.parametrize("persona", [(LONG,), ("w1 w2 " * 3000,) * 100], ids=["one fact", "many"])
def test_of_long_texts_only_the_tokens_that_are_kept_are_read(tmp_path: Path, persona: tuple[str, ...]) -> None:
    tokenizer = Counting(write_base(tmp_path / "base", seed=0) / "tokenizer.json")
    sizes = {"max_context_tokens": 22, "max_candidate_tokens": 8}
    assembler = Assembler(tokenizer, ModelConfig(architecture="bi", base_name="", **sizes))
    tokenizer.letters = 0
    made, truncation = assembler.context(said(LONG, LONG + "w5", persona=persona))
    assert made == [CLS, *ids(persona[0][:90])[:9], SEP, *ids("w1 w2 w3 w1 w2 w3 w1 w2 w3 w5"), SEP]
    assert truncation.turns == 1
    assert truncation.tokens > 10_000, "those read are counted"
    assert tokenizer.letters < 4 * COUNTED_LETTERS


def test_of_a_long_candidate_only_the_tokens_that_are_kept_are_read(tmp_path: Path) -> None:
    tokenizer = Counting(write_base(tmp_path / "base", seed=0) / "tokenizer.json")
    assembler = Assembler(tokenizer, ModelConfig(architecture="bi", base_name="", max_candidate_tokens=8))
    tokenizer.letters = 0
    spaces = " " * 100_000
    made, cut = assembler.candidates([LONG, f"w1 {spaces}", f"w1{spaces}w2 w3 w4 w5 w6 w7{spaces}", spaces + LONG])
    assert made == [wrapped(each) for each in ("w1 w2 w3 w1 w2 w3", "w1", "w1 w2 w3 w4 w5 w6", "w1 w2 w3 w1 w2 w3")]
    assert cut == 3
    assert tokenizer.letters < 2_000_000, "twice what it takes to find so many tokens"


def test_tokens_cut_are_counted_to_the_last_one_in_what_a_server_takes(build: Build) -> None:
    """A server takes turns and facts of up to 20,000 letters, unless its operator allows more."""
    text = "w1 w2 " * 3333
    made, truncation = build(context_tokens := 30).context(said(text, persona=("w3 " * 10_000,)))
    assert len(made) == context_tokens + 2
    assert truncation == Truncation(tokens=10_001 - 15 + 6666 - 15)


def test_a_cut_is_counted_where_a_part_holds_just_the_tokens_kept(build: Build) -> None:
    part = (" w32 " + " ".join(f"w{n}" for n in range(1, 11))).ljust(COUNTED_LETTERS)
    made = build(10).context(said("w30 w31" + part))
    assert made == (wrapped("w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"), Truncation(tokens=3))


def test_half_a_surrogate_pair_is_refused(build: Build) -> None:
    with pytest.raises(InvalidInput, match="Unicode"):
        build().context(said("w1 \ud83d"))
    with pytest.raises(InvalidInput, match="Unicode"):
        build().candidates(["w1", "\udc00"])
