"""Rows of JSON lines, JSON documents, tables with separators, Arrow and Parquet."""

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import SEARCH, SHAREGPT, lines

from polyrank.index_builder.convert import rows as module
from polyrank.index_builder.convert.rows import guessed_encoding, records, table_on_disk
from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import RowError


def read(
    tmp_path: Path,
    content: str | bytes,
    name: str = "file.json",
    encoding: str | None = None,
    each: str = "",
    lines: str | None = None,
) -> list[object]:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = list(records(path, encoding, each, lines))
    return [str(row) if isinstance(row, RowError) else row for _, row in found]


@pytest.mark.parametrize("content", [
    json.dumps(SHAREGPT),
    json.dumps(SHAREGPT, indent=2),
    "\ufeff" + json.dumps(SHAREGPT, indent=1).replace("\n", "\r\n"),
    lines(SHAREGPT),
    "\n".join(json.dumps(row, indent=2) for row in SHAREGPT),
    "".join(json.dumps([row]) + "\n" for row in SHAREGPT),
], ids=["one line", "indented", "BOM and CRLF", "lines", "objects", "lists"])  # fmt: skip
def test_json_in_every_layout(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content) == SHAREGPT


def test_a_field_that_holds_no_rows_is_a_field(tmp_path: Path) -> None:
    own = [{"id": str(n), "points": [n, 2]} for n in range(3)]
    assert read(tmp_path, lines(own), "own.jsonl") == own


@pytest.mark.parametrize("content", ['[{"a": 1}, [], "b", null]', '{"a": 1}\n[]\n"b"\nnull\n'])
def test_rows_that_are_no_objects_are_told(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content, "file.jsonl") == [{"a": 1}, *["the row must be an object"] * 3]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
def test_rows_are_found_wherever_a_chunk_ends(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps(SHAREGPT, indent=1, ensure_ascii=False)
    monkeypatch.setattr(module, "_CHUNK", chunk)
    assert read(tmp_path, content) == SHAREGPT


def test_answers_of_a_search_one_after_the_other_hold_their_hits_alone(tmp_path: Path) -> None:
    hits = SEARCH["hits"]["hits"]
    for content in (json.dumps(SEARCH), json.dumps(SEARCH, indent=2)):
        assert read(tmp_path, f"{content}\n{content}", each="hits.hits[]") == [*hits, *hits]


def test_a_bad_line_costs_itself_alone(tmp_path: Path) -> None:
    first, second = lines(SHAREGPT).splitlines()
    found = read(tmp_path, f"{first}\nnot json\n{second}")
    assert found[0] == SHAREGPT[0]
    assert found[2] == SHAREGPT[1]
    assert str(found[1]).startswith("not valid JSON")


@pytest.mark.parametrize(("content", "reason"), [
    (json.dumps(SHAREGPT)[:-6], "is not valid JSON, or cut off: Unterminated string"),
    (json.dumps(SHAREGPT)[:-1], "is not valid JSON, or cut off"),
    ('[{"a": 1} x {"b": 2}]', "is not valid JSON, or cut off"),
    (b'[{"a": "\xff"}]', "is not UTF-8"),
    ("[" * 200_000, "a row is nested too deep"),
    (f'[{{"a": {"1" * 5000}}}]', "a number has too many digits"),
], ids=["cut in a text", "cut at the end", "damaged", "Latin-1", "nested", "digits"])  # fmt: skip
def test_a_damaged_document_is_refused(tmp_path: Path, content: str | bytes, reason: str) -> None:
    with pytest.raises(PoolInvalid, match=reason):
        read(tmp_path, content)


def test_a_row_without_an_end_is_read_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1000)
    monkeypatch.setattr(module, "_MOST_CHARACTERS", 5000)
    with pytest.raises(PoolInvalid, match="Unterminated"):
        read(tmp_path, '[{"a": "' + "x" * 1_000_000)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "windows-1252", "utf-16"])
def test_tables_of_every_separator_and_encoding(tmp_path: Path, separator: str, encoding: str) -> None:
    content = f'id{separator}text\r\n1{separator}"grüß; dich,\r\n| ""du"""\r\n\r\n2{separator}\r\n3\r\n'
    assert read(tmp_path, content.encode(encoding), "t.csv") == [
        {"id": "1", "text": 'grüß; dich,\r\n| "du"'},
        {"id": "2", "text": None},
        "the row has another number of cells than the header, 2",
    ]


def test_a_table_that_says_its_separator_or_is_given_an_encoding(tmp_path: Path) -> None:
    assert read(tmp_path, "sep=;\na,b;c\n1,2;3\n", "t.csv") == [{"a,b": "1,2", "c": "3"}]
    assert read(tmp_path, "id,text\n1,東京\n".encode("shift_jis"), "t.csv", "shift_jis") == [
        {"id": "1", "text": "東京"}
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("as_lines", [True, False])
def test_json_of_windows(tmp_path: Path, encoding: str, as_lines: bool) -> None:
    content = "".join(map(json.dumps, SHAREGPT)) if as_lines else json.dumps(SHAREGPT, ensure_ascii=False)
    assert read(tmp_path, content.encode(encoding), "s.jsonl" if as_lines else "s.json") == SHAREGPT


@pytest.mark.parametrize("between", ["", '"of": {"buckets": [%s]}, ' % ("1, " * 300_000 + "1")])
def test_lists_of_several_answers_are_all_read(tmp_path: Path, between: str) -> None:
    page = '{"hits": {"hits": [{"_id": "1"}]}, %s"took": 1}\n'
    assert read(tmp_path, (page % between) * 3, "pages.json", each="hits.hits[]") == [{"_id": "1"}] * 3


@pytest.mark.parametrize("content", ["\n \nid;text\n1;a\n", "id;text\r1;a\r"])
def test_tables_of_other_programs(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content, "t.csv") == [{"id": "1", "text": "a"}]


def test_a_table_of_too_many_columns_or_without_the_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolInvalid, match="there are 5000 columns"):
        read(tmp_path, ",".join("c" * 5000) + "\n", "t.csv")
    with pytest.raises(PoolInvalid, match="cannot be read as utf-16"):
        read(tmp_path, "id,text\n1,a\n", "t.csv", "utf-16")


def test_a_cell_that_is_too_long_costs_its_row(tmp_path: Path) -> None:
    content = f"id,text\n1,{'x' * 200_000}\n2,{'y' * (5 << 20)}\n3,fine\n"
    found = read(tmp_path, content, "t.csv")
    assert [str(row).startswith("not valid CSV") for row in found] == [True, True, False]


def test_arrow_and_parquet_as_lists_of_objects(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**row, "image": b"\xff"} for row in SHAREGPT])
    pq.write_table(table, tmp_path / "a.parquet")
    for name, make in (("b.arrow", pa.ipc.new_stream), ("c.arrow", pa.ipc.new_file)):
        with pa.OSFile(str(tmp_path / name), "wb") as file, make(file, table.schema) as writer:
            writer.write_table(table)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        assert [row for _, row in records(tmp_path / name, None)] == SHAREGPT, name


@pytest.mark.parametrize("start", [b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"])
def test_a_damaged_table_is_refused(tmp_path: Path, start: bytes) -> None:
    with pytest.raises(PoolInvalid, match="cannot be read"):
        read(tmp_path, start + b"\x00" * 100, "t")


def test_compressed_files(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "s.json.gz", "wt") as file:
        json.dump(SHAREGPT, file)
    with pa.output_stream(str(tmp_path / "s.json.zst"), "zstd") as stream:
        stream.write(json.dumps(SHAREGPT).encode())
    for name in ("s.json.gz", "s.json.zst"):
        assert [row for _, row in records(tmp_path / name, None)] == SHAREGPT


def test_bytes_that_are_no_utf8_are_letters_of_windows(tmp_path: Path) -> None:
    content = "\ufeffgrüß\r\n".encode() + "größer €,".encode("windows-1252") + "größer\n".encode() + b"\x81\n"
    found = read(tmp_path, content, "t.txt", lines=r"(?P<text>.+)")
    assert found == [{"text": text} for text in ("grüß", "größer €,größer", "\ufffd")]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
def test_records_lie_where_the_map_says(tmp_path: Path, indent: int | None, chunk: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    content = {"before": [{"a": 0}], "n": 12, "x": {"a": {"y": [{"a": 1}]}, "b": {"y": [{"a": 2}, {"a": 3}]}, "c": {}}}
    text = json.dumps(content, indent=indent)
    assert read(tmp_path, text, each="before[]") == [{"a": 0}]
    assert read(tmp_path, text, each="x.a.y[]") == [{"a": 1}]
    assert read(tmp_path, text, each="x.*.y[]") == [{"a": 1, "_key": "a"}, {"a": 2, "_key": "b"}, {"a": 3, "_key": "b"}]
    assert read(tmp_path, f"[{text}, {text}]", each="before[]") == [{"a": 0, "_part": 1}, {"a": 0, "_part": 2}]
    assert read(tmp_path, text, each="nowhere[]") == []


def test_a_file_is_looked_at_within_a_bound(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text("[" + '{"a": 1},\n' * 1000 + '{"a": "' + "x" * 1000)
    found = records(tmp_path / "f.json", None, most=5000)
    assert [row for _, row in zip(range(400), found, strict=False)] == [(n, {"a": 1}) for n in range(1, 401)]
    with pytest.raises(PoolInvalid, match="cut off"):
        list(found)


def test_lines_that_do_not_match_go_on_with_the_one_before(tmp_path: Path) -> None:
    content = "lost\n\u200e[1] Max: a\nb\n\n[2] Ben: c\r\n[3] Max: \u200e\n"
    found = read(tmp_path, content, "t.txt", lines=r"\[(?P<at>\d)\] (?P<who>\w+): (?P<text>.*)")
    assert found == [
        "the line is not as the map says, or too long",
        {"at": "1", "who": "Max", "text": "a\nb"},
        {"at": "2", "who": "Ben", "text": "c"},
        {"at": "3", "who": "Max", "text": ""},
    ]


def test_a_message_of_a_text_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MESSAGE", 20)
    found = read(tmp_path, "a: x\n" + "more\n" * 5 + "a: " + "y" * 30 + "\n", "t.txt", lines=r"a: (?P<text>.*)")
    assert found == ["the line is not as the map says, or too long"] * 2 + [{"text": "x\nmore\nmore\nmore\nmore"}]


def test_a_text_that_begins_with_a_bracket_is_no_json(tmp_path: Path) -> None:
    assert read(tmp_path, "[31.12.2026] a\n", "t.txt", lines=r"\[(?P<at>[\d.]+)\] (?P<text>.*)") == [
        {"at": "31.12.2026", "text": "a"}
    ]


def fill_a_disk() -> None:
    with table_on_disk() as table:
        table.execute("CREATE TABLE t (x TEXT)")
        table.execute("PRAGMA max_page_count = 10")
        for _ in range(100):
            table.execute("INSERT INTO t VALUES (?)", ("x" * 4000,))


def test_a_full_disk_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="disk is full"):
        fill_a_disk()


def test_a_table_on_the_disk_is_gone_afterwards() -> None:
    with table_on_disk() as table:
        table.execute("CREATE TABLE t (x TEXT)")
    with pytest.raises(sqlite3.ProgrammingError):
        table.execute("SELECT * FROM t")


SCRIPTS = {
    "cp932": "荷物はいつ届きますか？ご注文の商品は明日お届けの予定です。",
    "euc_jp": "荷物はいつ届きますか？ご注文の商品は明日お届けの予定です。",
    "gb18030": "请问我的包裹什么时候到？您的订单明天送达。",
    "big5": "請問我的包裹什麼時候到？您的訂單明天送達。",
    "euc_kr": "제 소포는 언제 도착하나요? 주문하신 상품은 내일 도착합니다.",
    "windows-1251": "Где моя посылка? Ваш заказ прибудет завтра.",
    "koi8-r": "Где моя посылка? Ваш заказ прибудет завтра.",
    "windows-1253": "Πού είναι το δέμα μου; Η παραγγελία σας θα φτάσει αύριο.",
    "windows-1255": "איפה החבילה שלי? ההזמנה שלך תגיע מחר.",
    "windows-1256": "أين طردي؟ سيصل طلبك غدا.",
    "tis-620": "พัสดุของฉันอยู่ที่ไหน คำสั่งซื้อของคุณจะมาถึงพรุ่งนี้",
    "windows-1250": "Państwa zamówienie dotrze jutro; dziękuję za cierpliwość; żółty też mamy.",
    "iso8859_15": "Où est mon colis ? Il arrive demain; désolé pour le délai; à bientôt.",
    "windows-1254": "Siparişiniz yarın teslim edilecek; teşekkür ederim ve iyi günler dilerim.",
    "windows-1257": "Jūsų užsakymas bus pristatytas rytoj; ačiū už greitą atsakymą.",
}


@pytest.mark.parametrize("encoding", SCRIPTS)
def test_a_table_is_read_in_the_encoding_of_its_script_or_language(tmp_path: Path, encoding: str) -> None:
    text = SCRIPTS[encoding]
    table = f"id,text\n{''.join(f'{n},{text}' + chr(10) for n in range(9))}"
    rows: list[Any] = read(tmp_path, table.encode(encoding), "t.csv")
    assert [row["text"] for row in rows] == [text] * 9
    assert (guessed_encoding(tmp_path / "t.csv") == "windows-1252") is (encoding == "iso8859_15")


@pytest.mark.parametrize(("content", "encoding"), [
    ("Wo bleibt mein Päckchen? Für Sie größer – 5 €.".encode("windows-1252"), "windows-1252"),
    ("Où est mon colis ? Désolé, prévenu à l’avance…".encode("windows-1252"), "windows-1252"),
    (b"a,b\n" + b"plain,text\n" * 100 + "x,größer\n".encode("windows-1252"), "windows-1252"),
    ("Päckchen für größere, ".encode() * 9 + "größer".encode("windows-1252"), None),
    ("荷物はいつ".encode(), None),
    ("荷物はいつ".encode("utf-16"), None),
    (json.dumps(["ä"], ensure_ascii=False).encode("windows-1252"), None),
    (b"plain", None),
])  # fmt: skip
def test_other_files_are_in_utf_8_or_windows_1252(tmp_path: Path, content: bytes, encoding: str | None) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert guessed_encoding(tmp_path / "t.csv") == encoding


def test_the_first_sheet_of_a_workbook_is_a_table(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for cells in (["Nr", "Text", "Text", "intern"], [1, "Größe?", None, False], [1, "5 €", "x", True]):
        book.worksheets[0].append(cells)
    book.create_sheet("Notizen").append(["a"])
    book.save(tmp_path / "t.xlsx")
    assert [row if isinstance(row, dict) else str(row) for _, row in records(tmp_path / "t.xlsx", None)] == [
        {"Nr": 1, "Text": "Größe?", "intern": False},
        {"Nr": 1, "Text": "5 €", "Text (3)": "x", "intern": True},
        "sheet Notizen: only the first sheet is read",
    ]


@pytest.mark.parametrize("start", [b"PK\x03\x04\x14\x00", b"%PDF-1.4\n%\xe2\xe3\n", b"SQLite format 3\x00"])
def test_archives_and_pages_are_refused(tmp_path: Path, start: bytes) -> None:
    with pytest.raises(PoolInvalid, match=r"unpack it, or save it as \.csv"):
        read(tmp_path, start + b"x" * 100, "t.zip")


def test_columns_of_one_name_are_all_there(tmp_path: Path) -> None:
    assert read(tmp_path, "id,text,text\n1,a,b\n", "t.csv") == [{"id": "1", "text": "a", "text (3)": "b"}]
