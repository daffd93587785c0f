"""Texts of which only a part is read, against reading them whole, for every kind of tokenizer that users bring."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from polyrank.model.checkpoint.lookup import MINILM, resolve_base
from polyrank.model.text.reading import Reader, finish
from polyrank.model.text.tokenizer import Tokenizer

CORPUS = [
    "Hi, my parcel is late. Can't you look where it is? It's order number 123456, paid 20.50.",
    "naïve café, straße, İstanbul, Ελλάδα, Привет мир, 東京都, 서울, हिन्दी, it'll do!!",
] * 20

# Pieces that tokenizers treat in different ways; each is repeated some times in a row.
PIECES = [
    *("a", "word", "Parcel ", "late, ", " ", "\n", " \n", "\t", "\u3000", ".", "!?", "'s", "'ll ", "1", "12 ", "-"),
    *(
        "é", "e\u0301", "\u0301", "\u0316", "\u0345", "\u0301\u0316",
        "İ", "ß", "ﬁ", "\ufdfa", "\u1100\u1161\u11a8", "한",
    ),
    *(
        "東", "京 ", "Привет ", "ж", "क\u094d", "\u09c7\u09be",
        "\u0600", "\u200b", "\x01", "\U0001f468\u200d", "\U0001f9ff",
    ),
    *("foo bar", "foo ba", " bar ", "[SEP]", "▁", "Ġ", "##"),
]  # fmt: skip
TEXTS = st.lists(
    st.tuples(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join), st.integers(1, 700)),
    min_size=1,
    max_size=8,
).map(lambda runs: "".join(piece * times for piece, times in runs))

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def wordpiece() -> RustTokenizer:
    return RustTokenizer.from_file(str(resolve_base(MINILM).directory / "tokenizer.json"))


def bpe(pre_tokenizer: object, normalizer: object = None) -> RustTokenizer:
    made = RustTokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def unigram(pre_tokenizer: object, *more: object) -> RustTokenizer:
    made = RustTokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), *more])
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    trainer = trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def with_added(made: RustTokenizer) -> RustTokenizer:
    made.add_tokens(["foo bar", AddedToken("   ", normalized=False), AddedToken("late", lstrip=True, rstrip=True)])
    return made


SEPARATING = {
    "WordPiece": wordpiece,
    "GPT-2": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "RoBERTa": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Llama 3": lambda: bpe(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        normalizers.NFC(),
    ),
    "SentencePiece": lambda: unigram(
        pre_tokenizers.Metaspace(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")
    ),
    "added tokens": lambda: with_added(bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "added tokens of WordPiece": lambda: with_added(wordpiece()),
}
JOINING = {
    "SentencePiece without words": lambda: unigram(None, normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"))
}


@cache
def tokenizer(kind: str) -> Tokenizer:
    made = (SEPARATING | JOINING)[kind]()
    with TemporaryDirectory() as directory:
        made.save(f"{directory}/tokenizer.json")
        return Tokenizer(Path(directory) / "tokenizer.json")


@pytest.mark.parametrize("kind", SEPARATING)
@settings(max_examples=cases(40))
@given(TEXTS, st.integers(1, 60))
def test_the_first_tokens_are_those_of_the_whole_text(kind: str, text: str, tokens: int) -> None:
    whole = tokenizer(kind).encode([text])[0]
    [read] = finish(Reader(tokenizer(kind)).beginnings([text], tokens))
    assert read[:tokens] == whole[:tokens]
    assert len(read) >= tokens or read == whole, "so that a cut is counted as before"


@pytest.mark.parametrize("kind", SEPARATING)
@settings(max_examples=cases(40))
@given(TEXTS, st.integers(1, 60), st.integers(1, 3000))
def test_the_last_tokens_are_those_of_the_whole_text(kind: str, text: str, tokens: int, letters: int) -> None:
    whole = tokenizer(kind).encode([text])[0]
    read = finish(Reader(tokenizer(kind)).end(text, tokens, letters))
    assert read[-tokens:] == whole[-tokens:]
    assert len(read) >= tokens or read == whole
    if len(text) <= letters:
        assert read == whole, "so that the tokens cut are counted"


@pytest.mark.parametrize("kind", JOINING)
def test_a_tokenizer_that_joins_words_reads_usual_texts_as_if_whole(kind: str) -> None:
    text = " ".join(CORPUS)
    whole = tokenizer(kind).encode([text])[0]
    [read] = finish(Reader(tokenizer(kind)).beginnings([text], 10))
    assert read[:10] == whole[:10]
    assert 10 < len(read) < len(whole)
    end = finish(Reader(tokenizer(kind)).end(text, 10, 640))
    assert end[-10:] == whole[-10:]
    assert len(end) < len(whole)
    assert finish(Reader(tokenizer(kind)).beginnings([text[:640]], 10)) == tokenizer(kind).encode([text[:640]])


@pytest.mark.parametrize("kind", JOINING)
def test_a_tokenizer_that_joins_words_reads_enough_for_many_tokens(kind: str) -> None:
    corpus = " ".join(CORPUS * 3)
    for left_out in range(0, 40, 2):
        text = corpus[: len(corpus) - left_out]
        part = text[text.index(" ", len(text) - 2048) :]
        tokens = len(tokenizer(kind).encode([part])[0])
        end = finish(Reader(tokenizer(kind)).end(text, tokens, 2048))
        assert end[-tokens:] == tokenizer(kind).encode([text])[0][-tokens:]


@pytest.mark.parametrize("kind", ["added tokens", "added tokens of WordPiece"])
def test_of_a_long_text_only_a_part_is_read_from_its_end_beside_added_tokens(kind: str) -> None:
    text = "foo bar late. " * 10_000
    end = finish(Reader(tokenizer(kind)).end(text, 10, 1000))
    assert end[-10:] == tokenizer(kind).encode([text])[0][-10:]
    assert len(end) < 1000
