"""What people must not find in a log of use is not in the store, whatever field of a request brought it."""

import io
import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from served import Served, serve
from service_fakes import build_store, pool, words_app

ARABIC = {ord("0") + digit: 0x660 + digit for digit in range(10)}
WIDE = {ord("0") + digit: 0xFF10 + digit for digit in range(10)}
# Each with what of it nobody may find: the digits, or what stands before the "@", or the query.
SECRETS = {
    "anna.kowalska@example.org": "kowalska",
    "Jörg+shop@bücher.example": "Jörg+shop",
    "o'hara_7@mail.example.co.uk": "o'hara",
    '"john doe"@example.org': "john doe",
    "heinrich@[10.1.2.3]": "heinrich",
    "https://ulrike:geheim-9@example.org/a": "ulrike",
    "redis://:geheim-8@example.org": "geheim-8",
    "ftp://u:k/e#y@example.org": "k/e#y",
    "https://shop.example/a;jsessionid=0A1B2C3D": "0A1B2C3D",
    "<bob.builder@example.com>": "bob.builder",
    "https://shop.example/reset?token=Zx81QwPl&user=7": "Zx81QwPl",
    "http://example.org/a/b?q=geheimwort#top": "geheimwort",
    "www.example.com/login?session=abcdeffedcba": "abcdeffedcba",
    "https://example.org?next=%2Fkonto%2Fprivat": "konto%2Fprivat",
    "DE89 3704 0044 0532 0130 00": "370400440532013000",
    "GB29NWBK60161331926819": "60161331926819",
    "de89-3704-0044-0532-0130-00": "370400440532013000",
    "FR14 2004 1010 0505 0001 3M02 606": "2004101005050001",
    "NL91 ABNA 0417 1643 00": "0417164300",
    "4111 1111 1111 1111": "4111111111111111",
    "5500-0000-0000-0004": "5500000000000004",
    "378282246310005": "378282246310005",
    "4012.8888.8888.1881": "4012888888881881",
    "4012\u00a08888\u202f8888\u20091881": "4012888888881881",
    "4242\u20134242\u20134242\u20134242": "4242424242424242",
    "4111 1111 1111 1112".translate(ARABIC): "4111111111111112",
    "5500000000000012".translate(WIDE): "5500000000000012",
    "+49 170 1234567": "491701234567",
    "(030) 901820-17": "03090182017",
    "0049/151/23456789": "004915123456789",
    "+1-202-555-0143": "12025550143",
    "202.555.0143": "2025550143",
    "06 12 34 56 78": "0612345678",
    "order 20240117": "20240117",
    "customer 123456": "123456",
}  # fmt: skip


def sentences() -> list[str]:
    """Each secret at the beginning, in the middle and at the end of what somebody says, and beside others."""
    every = list(SECRETS)
    alone = [form.format(secret) for secret in every for form in ("{}", "{} please", "w1 {}, w2", "it is {}.", "({})")]
    return [*alone, *(f"{one} or {other}" for one, other in pairwise(every)), "\n".join(every)]


def lines(store: Path) -> list[str]:
    """What the files of the log hold, what is compressed included."""
    found = list[str]()
    for path in sorted((store / "feedback").iterdir()):
        if path.suffix in (".jsonl", ".zst"):
            raw = path.read_bytes()
            opened = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw), read_across_frames=True)
            found += (opened.read() if path.suffix == ".zst" else raw).decode().splitlines()
    return found


def texts(value: Any) -> Iterator[str]:
    """What people said, in a line of the log."""
    if isinstance(value, dict):
        yield from (each for name in ("text", "persona") for each in _strings(value.get(name)))
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from texts(each)


def _strings(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def told(text: str) -> list[str]:
    """The secrets that a text tells: as they were given, by their telling part, or digit by digit."""
    plain = unicodedata.normalize("NFKC", text)
    tight = re.sub(r"[\W_]", "", "".join(str(unicodedata.digit(each, each)) for each in plain))
    return [
        secret
        for secret, telling in SECRETS.items()
        if secret in text or telling in text or (telling.isdigit() and telling in tight)
    ]


def use(server: Served) -> None:
    """Say every sentence as context, persona, candidate, and as edited and written reply."""
    said = sentences()
    for at, sentence in enumerate(said):
        body = {
            "context": [f"hello {sentence}", {"role": "user", "content": sentence}][: 1 + at % 2],
            "persona": [sentence],
            "candidates": [{"id": "sent", "text": sentence}, {"text": f"w1 {sentence}"}, "w2 w3"],
            "conversation": sentence[:256],
        }
        ranking = server.rank(**body)
        assert ranking.status_code == 200, ranking.text
        name = ranking.json()["ranking_id"]
        events = [
            {"ranking_id": name, "kind": "edited", "id": "sent", "text": sentence, "event_id": f"edited {at}"},
            {"ranking_id": name, "kind": "written", "text": f"{sentence}!", "event_id": f"written {at}"},
        ]
        answer = server.client.post("/feedback", json={"events": events})
        assert answer.status_code == 200, answer.text


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_store(tmp_path / "store", pool(40))
    return tmp_path / "store"


def test_no_secret_is_in_the_log(store: Path) -> None:
    with serve(words_app(store, feedback="texts")) as server:
        use(server)
    log = lines(store)
    kept = [text for line in log for text in texts(json.loads(line))]
    assert len(kept) > 7 * len(sentences()), "the texts themselves are kept"
    assert any("please" in text for text in kept)
    assert {secret for text in kept for secret in told(text)} == set()
    assert [secret for secret in SECRETS for line in log if secret in line or json.dumps(secret)[1:-1] in line] == []


def test_no_word_is_in_a_log_of_ids(store: Path) -> None:
    with serve(words_app(store, feedback="ids")) as server:
        use(server)
    log = lines(store)
    assert len(log) > 2 * len(sentences()), "rankings and events are counted"
    assert [line for line in log if list(texts(json.loads(line)))] == []
    assert [line for line in log if "please" in line or "hello" in line] == []


def test_what_is_told_is_noticed() -> None:
    """Else the tests above could not fail."""
    assert [secret for sentence in sentences() for secret in told(sentence)]
    assert all(secret in told(f"w1 {secret}") for secret in SECRETS)
