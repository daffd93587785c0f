"""`polyrank convert`: what it prints and refuses, and that other commands take what it wrote."""

import json
import signal
from pathlib import Path

import pytest
from command_line import Outcome, call, ended, start, write_rows
from foreign import BULK, CONVAI2, OPENAI, SCROLL, SHAREGPT, beir, lines, saved

from polyrank.index_builder.convert.maps import shipped

Capture = pytest.CaptureFixture[str]

REPLIES = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"a{n}"}]} for n in range(3)
]
WITH_EXAMPLES = {"sharegpt": json.dumps(SHAREGPT), "openai": lines([*OPENAI, *REPLIES]), "parlai": CONVAI2}
FOLDERS = ("beir", "hf-dataset")
WITHOUT = {"elasticsearch-bulk": BULK, "qdrant": json.dumps(SCROLL)}


def made(tmp_path: Path, form: str) -> Path:
    if form == "beir":
        return beir(tmp_path / "in")
    if form == "hf-dataset":
        return saved(tmp_path / "in", SHAREGPT)
    (tmp_path / "in").write_text({**WITH_EXAMPLES, **WITHOUT}[form])
    return tmp_path / "in"


def convert(capsys: Capture, tmp_path: Path, *arguments: object) -> Outcome:
    return call(capsys, "convert", *arguments, "--output", tmp_path / "out")


@pytest.mark.parametrize("form", [*WITH_EXAMPLES, *FOLDERS, *WITHOUT])
@pytest.mark.parametrize("named", [False, True])
def test_what_was_converted_is_evaluated_and_built(capsys: Capture, tmp_path: Path, form: str, named: bool) -> None:
    name = "sharegpt" if form == "hf-dataset" else form
    found = convert(capsys, tmp_path, made(tmp_path, form), *(["--from", name] if named else []), "--json")
    result = found.result
    assert result["format"] == name
    assert found.err.startswith(f"read as {name}: ")
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
    rows = "1;2026-01-02 10:00;customer;q;\n1;2026-01-02 10:02;agent;a;glad\n2;2026-01-02 10:03;agent;hello;glad\n"
    (tmp_path / "in.csv").write_text(f"Ticket ID;Created At;Sender Type;Body;Mood\n{rows}")
    table = ["--columns", "conversation=Ticket ID,who=Sender Type,text=Body,time=Created At"]
    outcome = convert(capsys, tmp_path, tmp_path / "in.csv", *table, "--answering", "agent")
    assert outcome.out.splitlines() == [
        f"{tmp_path / 'out' / 'dialogues.jsonl'}: 1 examples",
        f"{tmp_path / 'out' / 'pool.jsonl'}: 1 candidates",
    ]
    said = outcome.err.splitlines()
    assert "answering: agent (2); others: 1 messages, the most by customer (1)" in said
    assert f"not read: Mood (2, first: {tmp_path / 'in.csv'}:3)" in said
    assert any(line.startswith("left out 1: a reply with nothing said before it (first: ") for line in said)


def test_an_encoding_that_was_guessed_is_said(capsys: Capture, tmp_path: Path) -> None:
    rows = "チケット,誰,本文\n1,顧客,荷物はいつ届きますか？\n1,担当者,明日お届けの予定です。\n"
    (tmp_path / "t.csv").write_bytes(rows.encode("cp932"))
    table = ["--columns", "conversation=チケット,who=誰,text=本文", "--answering", "担当者"]
    found = convert(capsys, tmp_path, tmp_path / "t.csv", *table, "--json")
    assert found.result["guessed_encodings"] == {str(tmp_path / "t.csv"): "cp932"}
    assert found.result["answering"] == {"担当者": 1}
    assert f"{tmp_path / 't.csv'} is not in UTF-8: read as cp932; or name it by --encoding" in found.err.splitlines()


@pytest.mark.parametrize(("content", "columns"), [
    (
        {"talks": [{"id": 1, "said": [{"by": {"kind": "c"}, "text": "q"}, {"by": {"kind": "us"}, "text": "a"}]}]},
        "each=talks[],conversation=id,messages=said,text=text,who=by.kind",
    ),
    (
        "Nr;Wer;Text;intern\n1;c;q;FALSCH\n1;us;no;WAHR\n1;us;a;FALSCH\n",
        "conversation=Nr,text=Text,who=Wer,only=no(intern)",
    ),
])  # fmt: skip
def test_columns_may_lead_into_lists_and_say_what_is_no_note(capsys, tmp_path, content: object, columns: str) -> None:
    (tmp_path / "in").write_text(content if isinstance(content, str) else json.dumps(content))
    convert(capsys, tmp_path, tmp_path / "in", "--columns", columns, "--answering", "us", "--json")
    [row] = map(json.loads, (tmp_path / "out" / "dialogues.jsonl").read_text().splitlines())
    assert ([turn["content"] for turn in row["context"]], row["response"]) == (["q"], "a")


def test_options_reach_the_reader(capsys: Capture, tmp_path: Path) -> None:
    rows = "Vorgang,Wer,Was,Wann\n1,Kunde,größer? 4711 0815,1/3/2026 10:00\n1,Wir (Shop),ja €,2/3/2026 10:00\n"
    (tmp_path / "t.csv").write_bytes(rows.encode("windows-1252"))
    columns = ["--columns", "conversation=Vorgang,who=Wer,text=Was,time=Wann,texts=mail", "--order", "day-first"]
    who = ["--answering", "wir (shop)", "--encoding", "windows-1252", "--redact", "--keep-quotes"]
    assert convert(capsys, tmp_path, tmp_path / "t.csv", *columns, *who, "--json").result["examples"] == 1
    assert "ja €" in (tmp_path / "out" / "pool.jsonl").read_text()
    assert "größer? [number]" in (tmp_path / "out" / "dialogues.jsonl").read_text()
    (tmp_path / "second").mkdir()
    asks = ["--first-asks", "--order", "file", "--min-count", "2"]
    assert (
        convert(capsys, tmp_path / "second", tmp_path / "t.csv", *columns[:2], *asks, "--json").result["candidates"]
        == 0
    )
    write_rows(tmp_path / "d.jsonl", [{"_id": "1", "_source": {"text": "x", "body": {"en": "y"}}}])
    (tmp_path / "third").mkdir()
    convert(capsys, tmp_path / "third", tmp_path / "d.jsonl", "--columns", "text=_source.body.en")
    assert '"text":"y"' in (tmp_path / "third" / "out" / "pool.jsonl").read_text()


def test_a_file_of_no_kind_is_refused_with_its_fields_and_a_draft_reads_it(capsys: Capture, tmp_path: Path) -> None:
    talk = {"vorgang": 7, "verlauf": [{"wer": "Kunde", "was": "Wo ist es?"}, {"wer": "Shop", "was": "Es kommt."}]}
    write_rows(tmp_path / "in.jsonl", [talk])
    refused = convert(capsys, tmp_path, tmp_path / "in.jsonl")
    assert "  verlauf[].was  Wo ist es?" in refused.err.splitlines()
    assert "no map fits it; write one: --draft map.toml begins it" in refused.err
    own = tmp_path / "map.toml"
    drafted = call(capsys, "convert", tmp_path / "in.jsonl", "--draft", own, "--json")
    assert drafted.result == {"draft": str(own)}
    assert 'text = "was"' in own.read_text()
    assert convert(capsys, tmp_path, tmp_path / "in.jsonl", "--map", own, "--json").result["examples"] == 1
    assert "is there already" in call(capsys, "convert", tmp_path / "in.jsonl", "--draft", own).failure(2)


def test_a_draft_is_of_a_file_in_the_encoding_that_is_given(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("Nr,Größe,Wer\n1,Wie groß ist es?,Kunde\n1,Es ist größer.,Wir\n".encode("cp850"))
    outcome = call(capsys, "convert", tmp_path / "t.csv", "--encoding", "cp850", "--draft", tmp_path / "m.toml")
    assert outcome.status == 0
    assert "Wie groß ist es?" in outcome.err
    assert 'text = "\\"Größe\\""' in (tmp_path / "m.toml").read_text()


def test_the_draft_of_a_known_kind_is_its_map(capsys: Capture, tmp_path: Path) -> None:
    call(capsys, "convert", made(tmp_path, "sharegpt"), "--draft", tmp_path / "map.toml")
    assert 'messages = "conversations"' in (tmp_path / "map.toml").read_text()


def test_wrong_columns_and_an_output_that_is_not_empty_are_refused(capsys: Capture, tmp_path: Path) -> None:
    path = made(tmp_path, "sharegpt")
    told = convert(capsys, tmp_path, path, "--columns", "conversation=x,text=id").failure(1)
    assert "there is nothing at 'x'; the first rows have 'id'" in told
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    assert "not an empty directory" in convert(capsys, tmp_path, path).failure(2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_nothing_kept_is_a_failure(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    failure = convert(capsys, tmp_path, tmp_path / "in.jsonl", "--from", "openai").failure(1)
    assert failure.startswith(f"nothing was kept of {tmp_path / 'in.jsonl'}: ")


@pytest.mark.parametrize(("line", "form"), [
    (["evaluate", "--model", "lexical", "--data"], "sharegpt"),
    (["evaluate", "--model", "lexical", "--data"], "openai"),
    (["build", "--model", "lexical", "--store", "store", "--pool"], "elasticsearch-bulk"),
    (["train", "--only-evidence", "--base", "lexical", "--output", "new", "--train"], "openai"),
])  # fmt: skip
def test_other_commands_say_how_a_file_of_another_tool_is_converted(
    capsys: Capture, tmp_path: Path, line: list[str], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in it.jsonl").write_text(lines(SHAREGPT) if form == "sharegpt" else {**WITH_EXAMPLES, **WITHOUT}[form])
    failure = call(capsys, *line, "in it.jsonl").failure(1)
    assert failure.endswith(": polyrank convert 'in it.jsonl' --output DIR")
    assert f"looks like {shipped()[form].about}" in failure


def test_an_error_that_has_nothing_to_do_with_the_file_says_no_more(capsys: Capture, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "own.jsonl", [{"context": ["q"]}])
    assert "convert" not in call(capsys, "evaluate", "--model", "lexical", "--data", data).failure(1)


def test_a_pool_as_it_is_is_not_taken_for_a_file_of_another_tool(capsys: Capture, tmp_path: Path) -> None:
    pool = write_rows(tmp_path / "own.jsonl", [{"id": 1, "text": "x"}])
    failure = call(capsys, "build", "--model", "lexical", "--pool", pool, "--store", tmp_path / "store").failure(1)
    assert "convert" not in failure


def test_columns_are_named_in_the_encoding_that_is_given(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("番号,役割,内容\n1,顧客,どこ?\n1,担当者,明日です。\n".encode("shift_jis"))
    columns = ["--columns", "conversation=番号,who=役割,text=内容", "--answering", "担当者", "--encoding", "shift_jis"]
    assert convert(capsys, tmp_path, tmp_path / "t.csv", *columns, "--json").result["examples"] == 1


def test_names_in_a_file_do_nothing_to_a_terminal(capsys: Capture, tmp_path: Path) -> None:
    """They may clear it, set its title, or turn the order of letters around."""
    names = ("\x1b[2J", "\x1b]0;title\x07", "\u202edesrever", "\x9b2J", "a\rb")
    for at, rest in enumerate(
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, {})
    ):
        file = write_rows(tmp_path / f"{at}.jsonl", [{**rest, **dict.fromkeys(names, "\x1b[31mred")}] * 3)
        found = call(capsys, "convert", file, "--output", tmp_path / f"out{at}")
        assert found.status == at
        said = found.out + found.err
        assert "title" in said
        assert not {*said} & {*"\x1b\x07\u202e\x9b\r"}


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with (tmp_path / "in.json").open("w") as file:
        # Each is another one: what was there before is left out, and examples would be written for a moment only.
        file.write(f"[{json.dumps(SHAREGPT[1])}")
        for number in range(20_000):
            file.write(f",{json.dumps({**SHAREGPT[0], 'id': f'c{number}'})}")
        file.write("]")
    process = start("convert", tmp_path / "in.json", "--output", tmp_path / "out")
    while not list(tmp_path.glob("out/.unfinished-*/.dialogues*")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert ended(process).failure(1) == "interrupted; nothing was left half-written"
    assert not (tmp_path / "out").exists()
