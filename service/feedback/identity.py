"""Names that a store's log of feedback gives: signed ids of rankings, digests of conversations, places in a share.

All are made with one secret key of the store, so every server and command on it makes and checks the same.
"""

from contextlib import suppress
from hashlib import sha256
from hmac import compare_digest, digest
from pathlib import Path
from random import Random
from re import ASCII, compile
from secrets import token_bytes
from socket import gethostname
from typing import Final, NamedTuple

from polyrank.index_builder.layout import FEEDBACK
from polyrank.model.durable import make_directory, make_once, sync_directory
from polyrank.model.inputs import read_input
from polyrank.service.errors import FeedbackUnusable, UnknownRanking

_KEY: Final = "key"
_KEY_BYTES = 32
# A ranking's id is 30 bytes: milliseconds since the epoch, digest of the conversation (zeros: it has no name), mark of
# the host, random ones, signature. So whoever has an event knows what erases it, and where its ranking was answered.
_TIME_BYTES, _CONVERSATION_BYTES, _HOST_BYTES, _RANDOM_BYTES, _SIGNATURE_BYTES = 6, 8, 2, 5, 9
_ID = compile("[0-9a-f]{60}", ASCII)
_UNNAMED = "00" * _CONVERSATION_BYTES
_CALLER_BYTES = 4
_PLACE_BYTES = 6  # as many as a float holds exactly


class RankingOrigin(NamedTuple):
    """What the id of a ranking tells."""

    at: float  # when it was asked for, in seconds since the epoch
    conversation: str | None  # the digest of its conversation; None: the caller named none
    host: str  # the mark of the host that answered


def origin_of(ranking_id: object) -> RankingOrigin | None:
    """Read the id of a ranking without checking its signature; None: it has not the form of one.

    >>> origin_of(Identity(b"k" * 32).ranking_id(1.5, "0123456789abcdef"))[:2], origin_of("r1")
    ((1.5, '0123456789abcdef'), None)
    """
    if not isinstance(ranking_id, str) or not _ID.fullmatch(ranking_id):
        return None
    at, ends = 2 * _TIME_BYTES, 2 * (_TIME_BYTES + _CONVERSATION_BYTES)
    conversation = ranking_id[at:ends]
    host = ranking_id[ends : ends + 2 * _HOST_BYTES]
    return RankingOrigin(int(ranking_id[:at], 16) / 1000, None if conversation == _UNNAMED else conversation, host)


def host_mark() -> str:
    """Return four hexadecimal digits that tell this host from others that write into the store."""
    return sha256(gethostname().encode("utf-8", "surrogateescape")).hexdigest()[: 2 * _HOST_BYTES]


class Identity:
    """What makes and checks these names; any thread may use it."""

    def __init__(self, key: bytes) -> None:
        self._key, self._host = key, bytes.fromhex(host_mark())
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

    def ranking_id(self, at: float, conversation: str | None = None) -> str:
        """Make the id of a ranking: 60 hexadecimal digits.

        `at`: when it was asked for, in seconds since the epoch. Ids tell the millisecond that had begun, so that none
        is later than a clock read afterwards, and sort by it.
        `conversation`: the digest of its conversation; None: it has no name.
        """
        nearest = round(at * 1000)
        milliseconds = (nearest - (nearest / 1000 > at)).to_bytes(_TIME_BYTES, "big")
        content = (
            milliseconds + bytes.fromhex(conversation or _UNNAMED) + self._host + self._random.randbytes(_RANDOM_BYTES)
        )
        return (content + self._signature(content)).hex()

    def checked(self, ranking_id: str) -> RankingOrigin:
        """Return what the id of a ranking tells; raises UnknownRanking if it is of no server."""
        if (origin := origin_of(ranking_id)) is None:
            raise UnknownRanking(ranking_id)
        raw = bytes.fromhex(ranking_id)
        content, signature = raw[:-_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]
        if not compare_digest(signature, self._signature(content)):
            raise UnknownRanking(ranking_id)
        return origin

    def conversation(self, name: str) -> str:
        """Return the digest by which the log knows a conversation: 16 hexadecimal digits."""
        return self._digest("conversation", name)[:_CONVERSATION_BYTES].hex()

    def caller(self, name: str) -> str | None:
        """Return the digest by which the log knows a caller by the name of its key: 8 hexadecimal digits.

        None: there are no keys, and nobody has a name.
        """
        return self._digest("caller", name)[:_CALLER_BYTES].hex() if name else None

    def share_of(self, trial: str, caller: str, name: str) -> float:
        """Return the place in [0, 1) of a conversation, given by its digest or by the id of its ranking.

        Places are uniform, and the same for one conversation while one generation is on trial: those below a share are
        in it, whatever it is. Those of each caller, given by the name of its key, are others: who tries names finds
        the sides of its own conversations alone.
        """
        place = self._digest("share", f"{trial}\0{caller}\0{name}")[:_PLACE_BYTES]
        return int.from_bytes(place, "big") / (1 << 8 * _PLACE_BYTES)

    def _signature(self, content: bytes) -> bytes:
        return digest(self._key, b"ranking\0" + content, "sha256")[:_SIGNATURE_BYTES]

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
