"""Names that a store's log of feedback gives: signed ids of rankings, digests of conversations, places in a share.

All are made with one secret key of the store, so every server and command on it makes and checks the same.
"""

from contextlib import suppress
from hmac import compare_digest, digest
from pathlib import Path
from random import Random
from re import ASCII, compile
from secrets import token_bytes
from typing import Final

from polyrank.index_builder.layout import FEEDBACK
from polyrank.model.durable import make_directory, make_once, sync_directory
from polyrank.model.inputs import read_input
from polyrank.service.errors import FeedbackUnusable, UnknownRanking

_KEY: Final = "key"
_KEY_BYTES = 32
# A ranking's id is 20 bytes: milliseconds since the epoch, random ones, signature.
_TIME_BYTES, _RANDOM_BYTES, _SIGNATURE_BYTES = 6, 5, 9
_ID = compile("[0-9a-f]{40}", ASCII)
_CONVERSATION_BYTES = 16
_PLACE_BYTES = 6  # as many as a float holds exactly


class Identity:
    """What makes and checks these names; any thread may use it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._random = Random()  # asking the system for each id would give the interpreter lock away

    @classmethod
    def of(cls, root: Path) -> "Identity":
        """Read the key of the store in this directory, or make it. Of several processes that make it, the first wins.

        Raises FeedbackUnusable where the key is damaged, OSError where it cannot be read, or not be made.
        """
        path = folder_of(root) / _KEY
        try:
            key = read_input(path)
        except FileNotFoundError:
            make_folder(root)
            make_once(path, token_bytes(_KEY_BYTES), mode=0o600)
            key = read_input(path)
        if len(key) != _KEY_BYTES:
            raise FeedbackUnusable(
                f"{path} is damaged: a key has {_KEY_BYTES} bytes; bring it back from a copy, or remove it, and "
                "rankings that were answered before take no feedback any more"
            )
        return cls(key)

    def ranking_id(self, at: float) -> str:
        """Make the id of a ranking that was answered at this time, in seconds since the epoch: 40 hexadecimal digits.

        Ids sort by their times, which are kept to the millisecond.
        """
        milliseconds = round(at * 1000).to_bytes(_TIME_BYTES, "big")
        made = milliseconds + self._random.randbytes(_RANDOM_BYTES)
        return (made + self._signature(made)).hex()

    def checked(self, ranking_id: str) -> float:
        """Return the time of a ranking, in seconds since the epoch; raises UnknownRanking if its id is of no server."""
        if not _ID.fullmatch(ranking_id):
            raise UnknownRanking(ranking_id)
        content = bytes.fromhex(ranking_id)
        made, signature = content[:-_SIGNATURE_BYTES], content[-_SIGNATURE_BYTES:]
        if not compare_digest(signature, self._signature(made)):
            raise UnknownRanking(ranking_id)
        return int.from_bytes(made[:_TIME_BYTES], "big") / 1000

    def conversation(self, name: str) -> str:
        """Return the digest by which the log knows a conversation: 32 hexadecimal digits."""
        return self._digest("conversation", name)[:_CONVERSATION_BYTES].hex()

    def share_of(self, trial: str, caller: str, named: str) -> float:
        """Return the place in [0, 1) of a conversation, given by its digest or by the id of its ranking.

        Places are uniform, and the same for one conversation while one generation is on trial: those below a share are
        in it, whatever it is. Those of each caller, given by the name of its key, are others: who tries names finds
        the sides of its own conversations alone.
        """
        place = self._digest("share", f"{trial}\0{caller}\0{named}")[:_PLACE_BYTES]
        return int.from_bytes(place, "big") / (1 << 8 * _PLACE_BYTES)

    def _signature(self, made: bytes) -> bytes:
        return digest(self._key, b"ranking\0" + made, "sha256")[:_SIGNATURE_BYTES]

    def _digest(self, purpose: str, text: str) -> bytes:
        return digest(self._key, f"{purpose}\0{text}".encode("utf-8", "surrogatepass"), "sha256")


def folder_of(root: Path) -> Path:
    """Return where the log of a store lies."""
    return root / FEEDBACK


def make_folder(root: Path) -> Path:
    """Make the directory of a store's log, which nobody but its owner may read, and return it; raises OSError."""
    make_directory(root)
    folder = folder_of(root)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        sync_directory(root)
    return folder
