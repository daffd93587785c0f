"""`polyrank feedback status` and `erase`."""

from pathlib import Path

import pytest
from command_line import call
from feedback_logs import use, write_log

from polyrank.service.feedback import files
from polyrank.service.feedback.identity import Identity
from polyrank.service.feedback.reading import uses

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two conversations and a ranking without one, over two days and generations."""
    one, other = (Identity.of(tmp_path).conversation(name) for name in ("one", "other"))
    told = [
        use(1, "hello", ("chosen", "a"), ("resolved",), conversation=one),
        use(2, "and then", ("written", None, "secret"), conversation=one),
        use(86_401, "hello", ("chosen", "b"), conversation=other, generation="h"),
        use(86_402, "bye"),
    ]
    write_log(tmp_path, told)
    [log] = (tmp_path / "feedback").glob("*.jsonl")
    with log.open("ab") as file:
        file.write(b'{"cut\n')
    return tmp_path


def test_status_counts_what_is_recorded(capsys: Capture, store: Path) -> None:
    done = call(capsys, "feedback", "status", "--store", store, "--json")
    facts = done.result
    assert (facts["rankings"], facts["with_feedback"]) == (4, 3)
    told = {kind: count for kind, count in facts["events"].items() if count}
    assert told == {"chosen": 2, "written": 1, "resolved": 1}
    assert facts["days"] == {"1970-01-01": 2, "1970-01-02": 2}
    assert facts["generations"] == {"g": 3, "h": 1}
    assert facts["left_out"] == {"repeated": 0, "alone": 0, "unknown": 0, "erased": 0, "damaged": 1}
    assert facts["bytes"] == next((store / "feedback").glob("*.jsonl")).stat().st_size
    lines = call(capsys, "feedback", "status", "--store", store).out.splitlines()
    assert lines[1:] == [
        "3 of them with feedback (75.0%)", "  chosen: 2", "  written: 1", "  resolved: 1",
        "generation g: 3 rankings", "generation h: 1 rankings", "left out: 1 damaged lines",
    ]  # fmt: skip
    assert lines[0].startswith("4 rankings from 1970-01-01 to 1970-01-02, in ")


def test_status_of_nothing_says_how_to_begin(capsys: Capture, tmp_path: Path) -> None:
    done = call(capsys, "feedback", "status", "--store", tmp_path)
    assert done.out == "no ranking is recorded; polyrank serve --feedback texts records them\n"
    assert not [*tmp_path.iterdir()]


def test_a_conversation_is_erased_by_its_name_or_a_ranking(capsys: Capture, store: Path) -> None:
    done = call(capsys, "feedback", "erase", "--store", store, "--conversation", "one")
    assert done.out == "erased: 2 rankings and their events\n"
    assert [each.ranking.at for each in uses(store)] == [86_401, 86_402]
    assert not any(b"secret" in path.read_bytes() for path in (store / "feedback").iterdir())
    again = call(capsys, "feedback", "erase", "--store", store, "--conversation", "one", "--json")
    assert again.result == {"rankings": 0, "files_left": 0, "loop_collects_anew": False, "unknown": ["one"]}


def test_several_conversations_of_several_pools_are_erased(capsys, store: Path, tmp_path_factory, monkeypatch) -> None:
    """Each that is named, however it is written, and in all pools that a server has."""
    other = tmp_path_factory.mktemp("other")
    third = Identity.of(other).conversation("other")
    write_log(other, [use(1, "hello", conversation=third), use(2, "bye")])
    stores = ["--store", f"en={store}", "--store", f"de={other}"]
    names = ["--conversation", "one", "nobody", "--conversation", "other"]
    done = call(capsys, "feedback", "erase", *stores, *names)
    assert done.out.splitlines() == [
        "en: erased: 3 rankings and their events",
        "de: erased: 1 rankings and their events",
        "nothing is recorded of 'nobody'; are they named as requests named them?",
    ]
    assert [each.ranking.id for root in (store, other) for each in uses(root)] == ["r86402", "r00002"]
    monkeypatch.setenv("POLYRANK_STORE", f"en={store},de={other}")
    done = call(capsys, "feedback", "erase", "--conversation", "one", "--json")
    assert done.result == {"rankings": 0, "files_left": 0, "loop_collects_anew": False, "unknown": ["one"]}
    monkeypatch.delenv("POLYRANK_STORE")
    done = call(capsys, "feedback", "erase", "--conversation", "one")
    assert (done.status, "name the store directory" in done.err) == (2, True)


def test_a_full_disk_in_one_pool_keeps_no_other_from_being_erased(
    capsys: Capture, store: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    write_log(other, [use(1, "hello", conversation=Identity.of(other).conversation("one"))])
    write = files.write_atomically

    def full(path: Path, content: bytes) -> None:
        if store in path.parents:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(files, "write_atomically", full)
    done = call(capsys, "feedback", "erase", "--store", f"a={store}", "--store", f"b={other}", "--conversation", "one")
    assert (done.status, done.out) == (1, "b: erased: 1 rankings and their events\n")
    assert done.err.startswith("polyrank: nothing is erased yet: ")
    assert [*uses(other)] == []
