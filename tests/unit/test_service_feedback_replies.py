"""What shown replies say, found again in a store that has moved on."""

from pathlib import Path

import pytest
from feedback_logs import use
from service_fakes import build_store
from updated import LiveStore

from polyrank.index_builder.layout import GENERATIONS
from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.feedback.records import Ranking, Shown
from polyrank.service.feedback.replies import Replies

_POOL = [Candidate(name, f"reply {name}", {"name": name}) for name in "abcdefgh"]


def _ranking(generation: str, revision: int) -> Ranking:
    return use(1, None, generation=generation, revision=revision).ranking


def _texts(store: Path, ranking: Ranking, ids: str) -> list[str | None]:
    return [found and found.text for found in Replies(store).find(ranking, [Shown(each, 0.0) for each in ids])]


@pytest.mark.parametrize("parts", [1, 3])
def test_replies_of_every_part_are_found(tmp_path: Path, parts: int) -> None:
    generation = build_store(tmp_path, _POOL, parts=parts)
    assert _texts(tmp_path, _ranking(generation, 0), "hxa") == ["reply h", None, "reply a"]
    [found] = Replies(tmp_path).find(_ranking(generation, 0), [Shown("c", 0.0)])
    assert found == _POOL[2]


def test_what_updates_changed_is_found_as_it_was_shown(tmp_path: Path) -> None:
    generation = build_store(tmp_path, _POOL)
    served = LiveStore(tmp_path)
    revisions = [served.upsert(Candidate("a", "new a"), Candidate("z", "added")).revision]
    revisions.append(served.delete("a", "b").revision)
    revisions.append(served.upsert(Candidate("a", "newest a")).revision)
    served.close()
    seen = [_texts(tmp_path, _ranking(generation, revision), "abz") for revision in [0, *revisions]]
    assert seen == [
        ["reply a", "reply b", None], ["new a", "reply b", "added"], [None, None, "added"], ["newest a", None, "added"],
    ]  # fmt: skip
    gone = _ranking("20200101T000000000000-00000000", 0)
    assert _texts(tmp_path, gone, "abcz") == ["newest a", None, "reply c", "added"], "those of the active one"


def test_a_damaged_generation_is_as_good_as_none(tmp_path: Path) -> None:
    generation, _ = build_store(tmp_path, _POOL), build_store(tmp_path, [Candidate("a", "of the active one")])
    (tmp_path / GENERATIONS / generation / "candidates.arrow").write_bytes(b"no table")
    assert _texts(tmp_path, _ranking(generation, 0), "ab") == ["of the active one", None]


def test_a_store_without_generations_knows_only_what_was_sent_along(tmp_path: Path) -> None:
    sent = [Shown("a", 0.0), Shown("x", 0.0, "sent"), Shown(None, 0.0, "nameless"), Shown(None, 0.0)]
    found = Replies(tmp_path).find(_ranking("g", 0), sent)
    assert found == [None, Candidate("x", "sent"), Candidate("", "nameless"), None]
