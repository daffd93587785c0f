"""`polyrank convert`: what it prints and refuses, and that other commands take what it wrote."""

import json
import signal
from pathlib import Path

import pytest
from command_line import Outcome, call, ended, start, write_rows
from foreign import BULK, CONVAI2, HELPDESK, OPENAI, SCROLL, SHAREGPT, UBUNTU_VALID, beir, lines, saved

Capture = pytest.CaptureFixture[str]

WITH_EXAMPLES = {
    "sharegpt": json.dumps(SHAREGPT),
    "openai": lines([*OPENAI, *[{"messages": ["q", f"a{n}"]} for n in range(3)]]),
    "convai2": CONVAI2,
    "ubuntu-csv": UBUNTU_VALID,
    "csv": HELPDESK,
    "beir": "",
    "hf-dataset": "",
}
WITHOUT = {"elasticsearch": BULK, "qdrant": json.dumps(SCROLL)}


def made(tmp_path: Path, form: str) -> Path:
    if form == "beir":
        return beir(tmp_path / "in")
    if form == "hf-dataset":
        return saved(tmp_path / "in", SHAREGPT)
    (tmp_path / "in").write_text({**WITH_EXAMPLES, **WITHOUT}[form])
    return tmp_path / "in"


def convert(capsys: Capture, tmp_path: Path, *arguments: object) -> Outcome:
    return call(capsys, "convert", *arguments, "--output", tmp_path / "out")


@pytest.mark.parametrize("form", [*WITH_EXAMPLES, *WITHOUT])
@pytest.mark.parametrize("named", [False, True])
def test_what_was_converted_is_evaluated_and_built(capsys: Capture, tmp_path: Path, form: str, named: bool) -> None:
    found = convert(capsys, tmp_path, made(tmp_path, form), *(["--from", form] if named else []), "--json")
    result = found.result
    assert result["format"] == form
    assert found.err.startswith(f"read as {form}: ")
    pool, dialogues = tmp_path / "out" / "pool.jsonl", tmp_path / "out" / "dialogues.jsonl"
    built = call(capsys, "build", "--model", "lexical", "--pool", pool, "--store", tmp_path / "store", "--json")
    assert built.result["count"] == result["candidates"] > 0
    if form in WITHOUT:
        assert (result["examples"], result["files"]) == (0, {})
        return
    data = ["--model", "lexical", "--data", dialogues, "--pool", pool]
    evaluated = call(capsys, "evaluate", *data, "--json").result
    assert evaluated["examples"] == result["files"]["dialogues.jsonl"] > 0


def test_what_is_printed(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HELPDESK)
    outcome = convert(capsys, tmp_path, tmp_path / "in.csv")
    assert outcome.out.splitlines() == [
        f"{tmp_path / 'out' / 'dialogues.jsonl'}: 2 examples",
        f"{tmp_path / 'out' / 'pool.jsonl'}: 2 candidates",
    ]
    assert f"left out 1: the row has no text (first: {tmp_path / 'in.csv'}:8)" in outcome.err.splitlines()


def test_options_reach_the_reader(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("Vorgang,Wer,Was\n1,Kunde,größer?\n1,Wir (Shop),ja €\n".encode("windows-1252"))
    columns = ["--columns", "conversation=Vorgang,role=Wer,text=Was"]
    who = ["--answering", "Wir (Shop)", "--encoding", "windows-1252"]
    assert convert(capsys, tmp_path, tmp_path / "t.csv", *columns, *who, "--json").result["examples"] == 1
    assert "ja €" in (tmp_path / "out" / "pool.jsonl").read_text()
    write_rows(tmp_path / "d.jsonl", [{"_id": "1", "_source": {"text": "x", "body": {"en": "y"}}}])
    (tmp_path / "second").mkdir()
    convert(capsys, tmp_path / "second", tmp_path / "d.jsonl", "--text", "body.en")
    assert '"text":"y"' in (tmp_path / "second" / "out" / "pool.jsonl").read_text()


def test_wrong_usage(capsys: Capture, tmp_path: Path) -> None:
    path = made(tmp_path, "sharegpt")
    assert convert(capsys, tmp_path, tmp_path / "nowhere").failure(2) == f"{tmp_path / 'nowhere'}: no such file"
    assert (
        "'who' must be one of conversation, role, text, time"
        in convert(capsys, tmp_path, path, "--columns", "who=x").misuse
    )
    assert "invalid choice" in convert(capsys, tmp_path, path, "--from", "word").misuse
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    assert "not an empty directory" in convert(capsys, tmp_path, path).failure(2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_nothing_kept_is_a_failure(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    failure = convert(capsys, tmp_path, tmp_path / "in.jsonl", "--from", "openai").failure(1)
    assert failure.startswith(f"nothing was kept of {tmp_path / 'in.jsonl'}: ")


@pytest.mark.parametrize(
    ("line", "form"),
    [
        (["evaluate", "--model", "lexical", "--data"], "sharegpt"),
        (["evaluate", "--model", "lexical", "--data"], "openai"),
        (["build", "--model", "lexical", "--store", "store", "--pool"], "elasticsearch"),
        (["train", "--only-evidence", "--base", "lexical", "--output", "new", "--train"], "openai"),
    ],
)
def test_other_commands_say_how_a_file_of_another_tool_is_converted(
    capsys: Capture, tmp_path: Path, line: list[str], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in it.jsonl").write_text(lines(SHAREGPT) if form == "sharegpt" else {**WITH_EXAMPLES, **WITHOUT}[form])
    failure = call(capsys, *line, "in it.jsonl").failure(1)
    assert failure.endswith(f": polyrank convert --from {form} 'in it.jsonl' --output DIR")


def test_an_error_that_has_nothing_to_do_with_the_file_says_no_more(capsys: Capture, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "own.jsonl", [{"context": ["q"]}])
    assert "convert" not in call(capsys, "evaluate", "--model", "lexical", "--data", data).failure(1)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with (tmp_path / "in.json").open("w") as file:
        file.write("[")
        for _ in range(30_000):
            file.write(f"{json.dumps(SHAREGPT[0])},")
        file.write(f"{json.dumps(SHAREGPT[1])}]")
    process = start("convert", tmp_path / "in.json", "--output", tmp_path / "out")
    while not list(tmp_path.glob("out/.unfinished-*/.dialogues*")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert ended(process).failure(1) == "interrupted; nothing was left half-written"
    assert not (tmp_path / "out").exists()
