"""Text to token ids, safely from several threads.

This loads a `tokenizers.Tokenizer` directly and never changes it afterwards. The fast tokenisers of transformers set
truncation and padding on the shared Rust object in every call, which fails under threads ("Already borrowed"). Texts
are cut to length by polyrank.model.text.assembly and padded by the batch.

The library takes what memory it is asked for, and where there is none it ends the process. So how far the steps of a
tokenizer.json may make a text grow is judged before the library reads it (`require_bounded`).
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
from tokenizers import Tokenizer as RustTokenizer

from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.inputs import MOST_TOKENIZER_BYTES, read_input

_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor")
_MOST_STEPS = 1024  # objects in these sections, tokens of templates among them
_MOST_TIMES = 256  # of a text's length, by all steps together
_MOST_ADDED = 256  # letters or tokens that a step puts around a text
_USUAL_BYTES = 64  # the longest that Unicode's own tables make of a letter are 33
_LONGEST_WORD = 1000  # letters; WordPiece takes the square of it in time


def require_bounded(raw: object) -> None:
    """Raise ValueError where the content of a tokenizer.json makes texts too long, or would end the process."""
    if not isinstance(raw, dict):
        raise ValueError("it is no JSON object")
    times = 1
    for number, step in enumerate(step for name in _SECTIONS for step in _steps(raw.get(name))):
        if number == _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS} steps")
        times *= _times(step)
        if times > _MOST_TIMES:
            raise ValueError(f"its steps make a text more than {_MOST_TIMES} times as long")
    model = raw.get("model")
    longest = model.get("max_input_chars_per_word") if isinstance(model, dict) else None
    if isinstance(longest, int) and longest > _LONGEST_WORD:
        raise ValueError(f"its words may have {longest:.6g} letters, more than {_LONGEST_WORD}")


def _steps(section: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a section: steps may be nested, and the library knows some without their type."""
    stack = [section]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value


def _times(step: Mapping[str, Any]) -> int:
    """Return how many times as long a step makes a text, at most; raises ValueError where it adds too much to it."""
    match step:
        case {"pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1, ceil(len(content) / len(pattern)))
        case {"content": str(content)}:
            return 1 + len(content)  # a regular expression may find nothing between any two letters
        case {"prepend": str(added)} if len(added) > _MOST_ADDED:
            raise ValueError(f"it puts {len(added)} letters before each text")
        case {"precompiled_charsmap": str(table)}:
            return ceil(_longest_in(table) / _USUAL_BYTES)
        case {"single": list(single), "pair": list(pair), "special_tokens": dict(tokens)}:
            return max(_times_in_template(single, tokens), ceil(_times_in_template(pair, tokens) / 2))
        case {"type": "ByteLevel"} | {"use_regex": _}:
            return 4  # the bytes of a letter
        case {"type": "Metaspace"} | {"replacement": _}:
            return 2
    return 1


def _longest_in(table: str) -> int:
    """Return how many bytes a table makes of a letter, at most 1: the size of a trie, the trie, and texts behind it."""
    content = base64.b64decode(table)
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or not 4 <= size <= len(content) - 4:
        raise ValueError("its precompiled_charsmap is damaged")
    return max(1, *map(len, content[4 + size :].split(b"\0")))


def _times_in_template(pieces: list[Any], tokens: Mapping[str, Any]) -> int:
    """Return how many texts a template joins."""
    fields = [each for piece in pieces if isinstance(piece, dict) for each in piece.values() if isinstance(each, dict)]
    special = [token for each in fields if isinstance(token := tokens.get(str(each.get("id"))), dict)]
    added = sum(len(ids) for each in special if isinstance(ids := each.get("ids"), list))
    if max(len(pieces), added) > _MOST_ADDED:
        raise ValueError(f"it puts more than {_MOST_ADDED} tokens around each text")
    return max(1, sum("Sequence" in piece for piece in pieces if isinstance(piece, dict)))


FEW_LETTERS = 2048  # that are tokenised in one or two milliseconds
_NO_UNICODE = "a text is not a string of Unicode characters (a lone surrogate?)"
_MASKS = ("[MASK]", "<mask>")
_MOST_SHOWN = 300  # letters of a message of the Rust library, which repeats what it read


class Token(NamedTuple):
    """A token, its text, and the span of characters that it stands for; a special token has no span."""

    id: int
    text: str
    span: tuple[int, int] | None


class Span(NamedTuple):
    """A token's id, the characters that it stands for, without spaces around them, and the number of its word."""

    id: int
    start: int
    end: int
    word: int


class Tokenizer:
    """Turns plain text into token ids, and knows the special tokens around a sequence or a pair.

    Attributes:
        prefix, suffix: ids around a single sequence, e.g. [CLS] and [SEP].
        pair_separator, pair_suffix: ids between and after the two sequences of a pair.
        separates_words: a word's tokens depend on that word alone, as in WordPiece; not so without a pre-tokenizer.
        longest_added: letters of the longest token that was added to the vocabulary and is not special; 0: none was.
    """

    def __init__(self, path: Path) -> None:
        try:
            raw = orjson.loads(read_input(path, MOST_TOKENIZER_BYTES))
            require_bounded(raw)
            with _panics():
                self._rust = RustTokenizer.from_str(orjson.dumps(raw).decode())  # what was judged, not what was written
        except FileNotFoundError as error:
            raise CheckpointInvalid(f"{path} is missing") from error
        except Exception as error:  # the Rust library raises bare Exception on malformed input
            raise CheckpointInvalid(f"{path} is not a tokenizer file: {error!s:.{_MOST_SHOWN}}") from error
        self._rust.no_truncation()  # published tokenizer.json files keep the settings of their training
        self._rust.no_padding()
        self._rust.encode_special_tokens = True  # "[SEP]" typed by a user is text, not a separator
        try:
            with _panics():
                self._learn_special_tokens()
                self._learn_words()
        except Exception as error:  # ValueError and IndexError from here, bare Exception from the Rust library
            raise CheckpointInvalid(
                f"{path} cannot encode the letter a, alone and as a pair: {error!s:.{_MOST_SHOWN}}"
            ) from error

    def _learn_special_tokens(self) -> None:
        probe = self._rust.encode("a", add_special_tokens=False).ids
        single = self._rust.encode("a").ids
        pair = self._rust.encode("a", "a").ids
        at, n = single.index(probe[0]), len(probe)
        second = pair.index(probe[0], at + n)
        self.prefix, self.suffix = single[:at], single[at + n :]
        self.pair_separator, self.pair_suffix = pair[at + n : second], pair[second + n :]

        added = self._rust.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.mask_id = next((token_id for name in _MASKS if (token_id := self.special_id(name)) is not None), None)

    def _learn_words(self) -> None:
        """Learn whether words are tokenised each by itself, and the letters of the longest token that may join some."""
        _, words = self.words("a a")
        self.separates_words = len(set(words)) > 1
        added = self._rust.get_added_tokens_decoder().values()
        self.longest_added = max((len(token.content) for token in added if not token.special), default=0)

    @property
    def separator(self) -> str:
        """The special token that ends a sequence, such as [SEP]; empty if there is none."""
        return str(self._rust.id_to_token(self.suffix[0])) if self.suffix else ""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens; the name of a special token in a text is plain text.

        Raises InvalidInput for another type than a string, or half of a surrogate pair.
        """
        try:
            if sum(map(len, texts)) <= FEW_LETTERS:  # waking the library's threads, which share a batch, takes longer
                return [self._rust.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]
            return [encoding.ids for encoding in self._rust.encode_batch_fast(texts, add_special_tokens=False)]
        except TypeError as error:
            raise InvalidInput(_NO_UNICODE) from error

    def words(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text, as `encode`, and for each the number of its word, ascending from 0."""
        encoding = self._read(text)
        return encoding.ids, cast(list[int], encoding.word_ids)  # None is for special tokens

    def _read(self, text: str) -> Any:
        try:  # a batch, because it lets go of the interpreter lock
            return self._rust.encode_batch([text], add_special_tokens=False)[0]
        except TypeError as error:
            raise InvalidInput(_NO_UNICODE) from error

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Return the tokens of each text, uncut; `wrapped`: with the special tokens around a single sequence."""
        return [
            [
                Token(id_, token, None) if special else Token(id_, text[start:stop], (start, stop))
                for id_, token, special, (start, stop) in zip(
                    encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
                )
            ]
            for text, encoding in zip(texts, self._rust.encode_batch(texts, add_special_tokens=wrapped), strict=True)
        ]

    def spans(self, text: str) -> list[Span]:
        """Return the tokens of a text with their places, without special tokens; words are counted from 0.

        A word ends where the tokenizer's own word ends, and at a space. Raises InvalidInput as `encode`.
        """
        encoding, spans = self._read(text), list[Span]()
        before, word, reached = None, -1, -1
        for id_, own, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
            while start < end and text[start].isspace():
                start += 1
            while end > start and text[end - 1].isspace():
                end -= 1
            if own != before or start > reached:
                word += 1
            before, reached = own, max(end, reached)
            spans.append(Span(id_, start, end, word))
        return spans

    def name_of(self, id_: int) -> str:
        """Return a token's name in the vocabulary; empty: there is none of this id."""
        return self._rust.id_to_token(id_) or ""

    def id_of(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary; None: there is none of that name."""
        token_id: int | None = self._rust.token_to_id(token)
        return token_id

    def special_id(self, token: str) -> int | None:
        """Return the id of a token that was added to the vocabulary, such as [MASK]; None: there is none."""
        token_id = self.id_of(token)
        return token_id if token_id in self._rust.get_added_tokens_decoder() else None

    def marker(self, text: str) -> list[int]:
        """Return the ids of a separator or marker of the config: a special token's name, plain text, or nothing."""
        special = self.special_id(text)
        if special is not None:
            return [special]
        return self.encode([text])[0] if text else []


@contextmanager
def _panics() -> Iterator[None]:
    """Raise a panic of the Rust library, which is no Exception, as a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error
