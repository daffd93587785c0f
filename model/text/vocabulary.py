"""Vocabularies of OpenAI's library tiktoken: from token ids to the text that they were cut from.

A file has a line for each token: its bytes in base64, and its id.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input

MOST_FILE_BYTES = 64 << 20


class Vocabulary:
    """The bytes of each token, by id."""

    def __init__(self, tokens: dict[int, bytes]) -> None:
        self._tokens = tokens

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read a file such as `cl100k_base.tiktoken`.

        Raises:
            InvalidInput: it cannot be read, or is no such file; the message is one line.
        """
        try:
            lines = read_input(path, MOST_FILE_BYTES).splitlines()
            tokens = {int(rank): base64.b64decode(token, validate=True) for token, rank in map(bytes.split, lines)}
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
        except ValueError:
            raise InvalidInput(f"{path} is no vocabulary of tiktoken's, such as cl100k_base.tiktoken") from None
        if not tokens:
            raise InvalidInput(f"{path} is empty")
        return cls(tokens)

    def text(self, ids: Sequence[int]) -> str:
        """Join the tokens of one text; bytes that are not UTF-8, as where a letter was cut, become U+FFFD.

        Raises:
            InvalidInput: an id is not in the vocabulary.
        """
        try:
            return b"".join([self._tokens[each] for each in ids]).decode(errors="replace")
        except KeyError as error:
            raise InvalidInput(f"the vocabulary has no token {error.args[0]}") from None
