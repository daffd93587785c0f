"""`polyrank demo`: once with the real sample and model, the rest with a small model."""

import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import call

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.cli import parser
from polyrank.service.cli.commands import demo
from polyrank.service.process import server
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where the demo makes its store."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small checkpoints; `cross` reranks."""
    monkeypatch.setattr(demo, "RERANKER", str(checkpoints / "cross"))
    return checkpoints


def test_the_real_sample_ranks_above_the_floor(capsys: Capture) -> None:
    outcome = call(capsys, "demo", "--once")
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    first, second, third = demo.EXAMPLE
    assert lines[:3] == [f"  customer: {first}", f"  agent: {second}", f"  customer: {third}"]
    rows = [line.split(maxsplit=2) for line in lines[3:8]]
    assert [rank for rank, *_ in rows] == ["1", "2", "3", "4", "5"]
    scores = [float(score) for _, score, _ in rows]
    assert scores == sorted(scores, reverse=True)
    assert rows[0][2].startswith("The tracking has not moved for five days")
    assert lines[8].startswith("R@1/20 over 200 sample conversations: 0.")
    assert lines[8].endswith("(floor 0.80)")
    assert len(lines) == 9
    assert demo.FLOOR == 0.80


def test_the_store_is_used_again_until_the_model_changes(capsys: Capture, home: Path, tiny: Path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "FLOOR", 0.0)
    notes = []
    for name in ("other", "other", "poly"):
        monkeypatch.setattr(demo, "MODEL", str(tiny / name))
        outcome = call(capsys, "demo", "--once")
        assert outcome.status == 0
        notes.append(outcome.err.splitlines()[0])
    first, second = GenerationStore(home / ".demo-store").ids()
    assert notes[0].startswith(f"built generation {first}: 416 candidates in ")
    assert notes[1] == f"using generation {first} in .demo-store"
    assert notes[2].startswith(f"built generation {second}: ")


def test_what_is_used_again_is_the_active_generation_if_it_holds_the_sample(
    capsys: Capture, home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = SimpleNamespace(as_object=lambda: {"recall@1": 1.0, "examples": 0})
    monkeypatch.setattr(demo, "measure", lambda _model, _conversations: right)
    monkeypatch.setattr(demo, "MODEL", str(tiny / "other"))
    rows = [f'{{"id": "{n}", "text": "w{n}"}}\n' for n in range(30)]
    (home / "pool.jsonl").write_text("".join(rows))
    sample = demo._sample
    monkeypatch.setattr(demo, "_sample", lambda name: home / name if name == "pool.jsonl" else sample(name))
    store = GenerationStore(home / ".demo-store")

    def note() -> str:
        outcome = call(capsys, "demo", "--once")
        assert outcome.status == 0, outcome.err
        return " ".join(outcome.err.split()[:3])

    note()
    [first] = store.ids()
    # The generation of another model is active now, though that of this one is still there.
    monkeypatch.setattr(demo, "MODEL", str(tiny / "poly"))
    note()
    monkeypatch.setattr(demo, "MODEL", str(tiny / "other"))
    assert note() == f"built generation {store.ids()[2]}:"
    assert note() == f"using generation {store.current()}"
    (home / "pool.jsonl").write_text("".join([*rows[:-1], '{"id": "29", "text": "another text"}\n']))
    assert note() == f"built generation {store.ids()[3]}:"
    (store.path(store.ids()[3]) / "ids.index").write_bytes(b"")
    assert note() == f"built generation {store.ids()[4]}:"
    (home / ".demo-store" / "CURRENT").write_text("?")
    assert note() == f"built generation {store.ids()[5]}:"
    assert first != store.current() == store.ids()[5]


def test_a_model_below_the_floor_fails(capsys: Capture, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MODEL", str(tiny / "poly"))
    outcome = call(capsys, "demo", "--once")
    assert outcome.status == 1
    assert "(floor 0.80)" in outcome.out
    assert outcome.err.splitlines()[-1].startswith("polyrank: the sample is ranked worse than it was measured")


def test_without_once_the_store_is_served(capsys: Capture, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []

    def run(settings: Settings) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr(server, "run", run)
    monkeypatch.setattr(demo, "MODEL", str(tiny / "poly"))
    outcome = call(capsys, "demo", "--port", "8123")
    assert outcome.status == 0
    expected = Settings.load(
        {"store": Path(".demo-store"), "port": 8123, "reranker": str(tiny / "cross"), "drain_delay_s": 0}
    )
    assert served == [expected]
    *_, build, rank = outcome.out.splitlines()
    assert rank.endswith(" --url http://127.0.0.1:8123")
    assert "R@1" not in outcome.out
    for line in (build, rank):
        words = shlex.split(line.split(": ", 1)[1])
        assert Path(words[0]).is_absolute(), "a new shell finds it without an environment"
        assert os.access(words[0], os.X_OK)
        options = words[words.index("polyrank.service.cli") + 1 :] if "-m" in words else words[1:]
        assert parser().parse_args(options).run


def test_where_there_is_no_sample(capsys: Capture, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SOURCE", home / "site-packages")
    message = call(capsys, "demo", "--once").failure(2)
    assert message.endswith("pool.jsonl is missing; a wheel and a clone of the source have it: install polyrank again")
    assert list(home.iterdir()) == []
