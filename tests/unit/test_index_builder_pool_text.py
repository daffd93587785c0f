"""CSV as spreadsheets and programs write it: separators, encodings, headers, typed columns, bad rows."""

import csv
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pool_formats import columns

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.names import is_encoding
from polyrank.index_builder.pool.rows import Candidate, Rejected, read_pool
from polyrank.index_builder.pool.text import MAX_LINE_BYTES

ROWS = [
    Candidate("a", 'zwei\nZeilen, "quoted"; größer | mehr\tdavon', {"lang": "de", "price": 5}),
    Candidate("b", "İzmir'e, 東京, नमस्ते", {"price": 49.9}),
]


def read(tmp_path: Path, content: bytes, encoding: str | None = None) -> list[Candidate | Rejected]:
    (tmp_path / "pool.csv").write_bytes(content)
    return list(read_pool([tmp_path / "pool.csv"], encoding=encoding))


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(PoolInvalid) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def metadata(tmp_path: Path, cells: list[str]) -> list[Any]:
    """What a column of these cells becomes."""
    with (tmp_path / "column.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "x"], *([f"text {n}", cell] for n, cell in enumerate(cells))])
    return [row.metadata.get("x") for row in read_pool([tmp_path / "column.csv"]) if isinstance(row, Candidate)]


@pytest.mark.parametrize("bom", [b"\xff\xfe", b"\xfe\xff"])
def test_utf_16_of_either_order(tmp_path: Path, bom: bytes) -> None:
    text = "ID\tText\r\na\tgrüß dich\r\n".encode("utf-16-le" if bom == b"\xff\xfe" else "utf-16-be")
    assert read(tmp_path, bom + text) == [Candidate("a", "grüß dich")]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("latin-1", "größer"), ("windows-1252", "5 €, größer"), ("utf-16-le", "größer"), ("shift_jis", "東京")],
)
def test_other_encodings_are_read_where_they_are_asked_for(tmp_path: Path, encoding: str, text: str) -> None:
    path = columns(tmp_path, [Candidate("a", text)], ";", encoding)
    assert list(read_pool([path], encoding=encoding)) == [Candidate("a", text)]


def test_a_byte_order_mark_is_believed_before_the_encoding_that_is_asked_for(tmp_path: Path) -> None:
    assert list(read_pool([columns(tmp_path, ROWS, ";", "utf-8-sig")], encoding="windows-1252")) == ROWS


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(tmp_path: Path, end: str) -> None:
    content = end.join(["id,text,note", 'a,"on two' + end + 'lines",x', "", ",,", "b,y,", ""])
    assert read(tmp_path, content.encode()) == [Candidate("a", f"on two{end}lines", {"note": "x"}), Candidate("b", "y")]


@pytest.mark.parametrize("header", [
    "ID,Text", " id , TEXT ", '"Id","text"', "ID;Text", "\n\nid,text", "sep=;\nid;text",
    "SEP=,\r\nid,text", "sep=^\nid^text", "\u200fid,\u200eText", "id\ttext",
])  # fmt: skip
def test_a_header_is_known_without_case_and_spaces(tmp_path: Path, header: str) -> None:
    separator = next(each for each in ";^\t," if each in header.splitlines()[-1])
    assert read(tmp_path, f"{header}\na{separator}hello\n".encode()) == [Candidate("a", "hello")]


def test_nothing_separates_one_column(tmp_path: Path) -> None:
    rows = read(tmp_path, b'Text\nHello, you; there\n"quoted, ""too"""\n')
    assert [row.text for row in rows if isinstance(row, Candidate)] == ["Hello, you; there", 'quoted, "too"']


def test_other_columns_keep_their_case_and_those_beside_a_known_one_too(tmp_path: Path) -> None:
    content = b"id,ID, Price (EUR) ,text,,Text\na,7,5,hello,,second\nb,8,6,x,y,z\n"
    (tmp_path / "pool.csv").write_bytes(content)
    rows = read_pool([tmp_path / "pool.csv"])
    assert list(rows) == [
        Candidate("a", "hello", {"ID": 7, "Price (EUR)": 5, "Text": "second"}),
        Candidate("b", "x", {"ID": 8, "Price (EUR)": 6, "Text": "z"}),
    ]
    assert rows.fields.described()["left_out"] == [{"field": "", "why": "its name is empty", "rows": 1}]


@pytest.mark.parametrize(("content", "says"), [
    (
        b"a1;Hello, how are you\na2;Fine\n",
        "there is no column 'text': the first line, read as UTF-8 with comma between columns, names 'a1;Hello', ",
    ),
    (
        "a1\tguten Tag\n".encode("utf-16"),
        "read as UTF-16 with tab between columns, names 'a1', 'guten Tag'; begin the file with a line such as",
    ),
    (b"id|body\na|x\n", "read as UTF-8 with vertical bar between columns, names 'id', 'body'; begin the file with"),
    ("id;text\n".encode("utf-16-le"), "id,text, or name another encoding, such as windows-1252, with --encoding"),
    (b"id,gr\xf6\xdfe,text\n", "the header is not valid UTF-8; name another encoding, such as windows-1252"),
    (b"text,text\n", "the header names twice: 'text'"),
    (b"Text,TEXT\n", "the header names twice: 'text'"),
    (b"text,x,x,y, y\n", "the header names twice: 'x', 'y'"),
    (b"text," + b"ID," * 300_000, "the header names twice: 'id'"),
    (b'"text\n', "the header is not valid CSV"),
    (b"text," + b",".join(b"%d" % n for n in range(5000)), "there are 5001 columns, more than 4096; leave some out"),
    (b"x" * 200_000, "the header is not valid CSV: field larger"),
    (b",".join(b"%d" % n for n in range(100_000)), "names '0', '1', '2', '3', '4', '5', '6', '7', …; begin"),
    (b"--" * 100, "with nothing between columns, names '------------------------------'; begin"),
])  # fmt: skip
def test_a_file_without_a_usable_header_is_refused_with_what_was_found(tmp_path, content: bytes, says: str) -> None:
    reason = refused(tmp_path, content)
    assert says in reason
    assert len(reason) < 600


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\r\n\r\n", b"id,text\n", b"sep=;\n"])
def test_an_empty_file_holds_nothing(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content) == []


@pytest.mark.parametrize(("row", "reason"), [
    (b"b", "1 cells, but the header has 3"),
    (b"b,x,en,more", "4 cells, but the header has 3; a cell that holds ',' needs quotes around it"),
    (b"b,,en", "'text' is empty"),
    (b"b,\xff,en", "not valid UTF-8; if the whole file is so, name another encoding, such as windows-1252, with --"),
    (b"b,x,\xed\xa0\x80", "not valid UTF-8"),
    (b"a,x,en", "the id 'a' was seen before"),
    (b'b,"x"y,en', "not valid CSV"),
    (b"b," + b"x" * 20_001 + b",en", "'text' has 20001 characters"),
    (b"b," + b"x" * 140_000 + b",en", "not valid CSV: field larger than field limit"),
    (b"b,x," + b"y" * (MAX_LINE_BYTES + 1), "not valid CSV: field larger than field limit"),
])  # fmt: skip
def test_a_bad_row_is_told_with_its_line_and_the_rest_goes_on(tmp_path: Path, row: bytes, reason: str) -> None:
    content = b'id,text,lang\na,"on two\nlines",en\n' + row + b"\nz,after,fr\n"
    first, bad, last = read(tmp_path, content)
    assert isinstance(first, Candidate)
    assert isinstance(bad, Rejected)
    assert bad.line == 4
    assert reason in bad.reason
    assert last == Candidate("z", "after", {"lang": "fr"})


def test_lines_are_counted_from_the_first_of_the_file(tmp_path: Path) -> None:
    bad, _ = read(tmp_path, b"sep=;\r\n\r\nid;text\r\na;\r\nb;x\r\n")
    assert bad == Rejected(str(tmp_path / "pool.csv"), 4, "'text' is empty")


def test_bytes_that_an_encoding_does_not_have_spoil_their_own_row(tmp_path: Path) -> None:
    bad, good = read(tmp_path, b"id,text\na,\x81\nb,\xe4\n", "windows-1252")
    assert isinstance(bad, Rejected)
    assert "not valid windows-1252" in bad.reason
    assert good == Candidate("b", "ä")
    content = "id,text\na,".encode("utf-16") + b"\x00\xd8" + "\nb,ä\n".encode("utf-16-le")
    bad, good = read(tmp_path, content)
    assert isinstance(bad, Rejected)
    assert "not valid UTF-16" in bad.reason
    assert good == Candidate("b", "ä")


def test_an_unclosed_quote_is_rejected_with_each_line_that_is_lost_in_it(tmp_path: Path) -> None:
    rows, file = read(tmp_path, b'id,text\na,x\nb,"y\nc,z\n'), str(tmp_path / "pool.csv")
    lost = Rejected(file, 4, "in the quotes that begin in line 3")
    assert rows[1:] == [Rejected(file, 3, "not valid CSV: unexpected end of data"), lost]
    rows = read(tmp_path, b'id,text\na,"x\n' + b"b,a text as long as a row\n" * 10_000 + b"c,y\n")
    reasons = [row.reason for row in rows if isinstance(row, Rejected)]
    assert reasons[0] == "not valid CSV: field larger than field limit (131072)"
    assert len(reasons) > 131_072 / len("b,a text as long as a row\n")
    assert rows[-1] == Candidate("c", "y")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_an_encoding_that_needs_a_byte_order_mark_is_refused_without_one(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(PoolInvalid, match=f"BOM; try --encoding {encoding}-le"):
        read(tmp_path, "id,text\na,x\n".encode(f"{encoding}-le"), encoding)


def test_a_nul_is_a_character_as_in_json(tmp_path: Path) -> None:
    assert read(tmp_path, b"id,text\na,x\0y\n") == [Candidate("a", "x\0y")]


@pytest.mark.parametrize(("cells", "values"), [
    (["5", "", "49.90", "-3", "0", "0.5"], [5, None, 49.9, -3, 0, 0.5]),
    (["true", "FALSE", " ", "True"], [True, False, None, True]),
    (["9007199254740991", "-9007199254740991"], [2**53 - 1, 1 - 2**53]),
])  # fmt: skip
def test_a_column_of_plain_values_is_typed_and_an_empty_cell_is_absent(
    tmp_path: Path, cells: list[str], values: list[Any]
) -> None:
    found = metadata(tmp_path, cells)
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize("odd", [
    "007", "+49301234", "0049 30 1234", "1e5", "1E5", "1.234,50", "1,5,5", "1,", ",5", "1,5e5",
    "007,5", "9007199254740992,5", "1 000", "5 €", " 5", "5.", ".5", "-", "--5", "9007199254740992",
    "1" * 5000, "12.5.2026", "2026-01-01", "nan", "inf", "0x1f", "1_000", "٣", "true", "yes", "text",
])  # fmt: skip
def test_one_cell_that_is_no_plain_number_makes_its_column_texts(tmp_path: Path, odd: str) -> None:
    assert metadata(tmp_path, ["5", odd]) == ["5", odd]


@pytest.mark.parametrize(("cells", "values"), [
    (["1.500", "", "89", "-12.000"], ["1.500", None, "89", "-12.000"]),  # a table of German prices
    (["1.500", "2.5"], [1.5, 2.5]),
    (["1.500", "0.125"], [1.5, 0.125]),
    (["1234.500"], [1234.5]),
])  # fmt: skip
def test_points_before_three_digits_may_part_thousands(tmp_path: Path, cells: list[str], values: list[Any]) -> None:
    assert metadata(tmp_path, cells) == values


@pytest.mark.parametrize(("cells", "values"), [
    (["5", "", "49,90", "-3", "0,125"], [5, None, 49.9, -3, 0.125]),
    (["1,5", "1,500"], [1.5, 1.5]),
    (["0,125"], [0.125]),
    (["1,500", "12,000"], ["1,500", "12,000"]),  # these may part thousands
    (["1,5", "1.5"], ["1,5", "1.5"]),
    (["1,5", "true"], ["1,5", "true"]),
    (["1,5", "1,2,3"], ["1,5", "1,2,3"]),
])  # fmt: skip
def test_a_column_may_have_decimal_commas(tmp_path: Path, cells: list[str], values: list[Any]) -> None:
    assert metadata(tmp_path, cells) == values
    pool = read_pool([tmp_path / "column.csv"])
    list(pool)
    are_numbers = isinstance(values[0], float | int)
    assert ("numbers with decimal commas: x" in pool.fields.lines()) == are_numbers
    assert pool.fields.described().get("decimal_commas", []) == (["x"] if are_numbers else [])


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("WAHR", "FALSCH"), ("VRAI", "FAUX"), ("VERDADERO", "FALSO"), ("VERO", "FALSO"), ("WAAR", "ONWAAR"),
        ("PRAWDA", "FAŁSZ"), ("ИСТИНА", "ЛОЖЬ"), ("DOĞRU", "YANLIŞ"), ("ja", "nein"), ("Oui", "Non"), ("Sí", "No"),
        ("evet", "hayır"), ("EVET", "HAYIR"), ("да", "нет"), ("はい", "いいえ"), ("是", "否"), ("yes", "No"),
    ],
)  # fmt: skip
def test_a_column_may_say_true_and_false_in_another_language(tmp_path: Path, true: str, false: str) -> None:
    assert metadata(tmp_path, [true, "", false, true.lower()]) == [True, None, False, True]
    pool = read_pool([tmp_path / "column.csv"])
    list(pool)
    assert "words read as true and false: x" in pool.fields.lines()
    assert pool.fields.described()["answers"] == ["x"]


@pytest.mark.parametrize("cells", [
    ["ja", "ja"], ["NO", "SE"], ["NO", "NO"], ["WAHR", "FAUX"], ["ja", "nein", "vielleicht"],
    ["wahr", "falsch", "1"], ["sand", "sand"], ["WAHR", "true"], ["true", "nein"],
])  # fmt: skip
def test_other_columns_stay_texts(tmp_path: Path, cells: list[str]) -> None:
    assert metadata(tmp_path, cells) == cells
    pool = read_pool([tmp_path / "column.csv"])
    list(pool)
    assert "answers" not in pool.fields.described()


def test_decimal_commas_are_those_of_a_column_in_all_files(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("text;price;size\na;1,5;1,5\n")
    (tmp_path / "2.csv").write_text("text;price;size\nb;2;L\n")
    found = [row.metadata for row in read_pool([tmp_path / "1.csv", tmp_path / "2.csv"]) if isinstance(row, Candidate)]
    assert found == [{"price": 1.5, "size": "1,5"}, {"price": 2, "size": "L"}]


def test_columns_that_name_and_say_are_texts(tmp_path: Path) -> None:
    content = b"_id,title,text,n\n1,1984,5,5\n2,,true,6\n"
    assert read(tmp_path, content) == [Candidate("1", "1984 5", {"n": 5}), Candidate("2", "true", {"n": 6})]


def test_a_column_has_one_kind_in_all_files_of_a_pool(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("text,code,n\na,12,1\n")
    (tmp_path / "2.csv").write_text("n;text;code\n2;b;A12\n")
    rows = read_pool([tmp_path / "1.csv", tmp_path / "2.csv"])
    assert [row.metadata for row in rows if isinstance(row, Candidate)] == [
        {"code": "12", "n": 1},
        {"code": "A12", "n": 2},
    ]


def test_a_row_that_is_shifted_does_not_count_for_the_kind(tmp_path: Path) -> None:
    rows = read(tmp_path, b"text,n\na,1\nb,x,2\nc,3\n")
    assert [row.metadata for row in rows if isinstance(row, Candidate)] == [{"n": 1}, {"n": 3}]


def test_a_column_of_json_is_metadata(tmp_path: Path) -> None:
    cells = [json.dumps({"price": 5, "tags": ["a"], "none": None}), "", "null", "[]", "{'price': 5}", "5"]
    with (tmp_path / "pool.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "Metadata", "n"], *([f"t{n}", cell, n] for n, cell in enumerate(cells))])
    rows = list(read_pool([tmp_path / "pool.csv"]))
    assert [row.metadata for row in rows[:3] if isinstance(row, Candidate)] == [
        {"n": 0, "price": 5, "tags": ["a"]},
        {"n": 1},
        {"n": 2},
    ]
    assert [row.reason.split(":")[0] for row in rows[3:] if isinstance(row, Rejected)] == [
        "'metadata' must be an object, not a list",
        "'metadata' must be an object, or a text with the JSON of one",
        "'metadata' must be an object, not a number",
    ]


def test_a_row_without_an_id_is_named_by_its_text(tmp_path: Path) -> None:
    [first, again] = read(tmp_path, b"id,text\n,hallo\n,hallo\n")
    assert first == Candidate(sha256(b"hallo").hexdigest()[:32], "hallo")
    reason = "the text, without an id, was seen before"
    assert again == Rejected(str(tmp_path / "pool.csv"), 3, reason, is_bad=False)


@pytest.mark.parametrize(
    ("name", "known"), [("latin-1", True), ("cp1252", True), ("utf-16", True), ("latin-99", False), ("base64", False)]
)
def test_encodings_that_texts_can_have(name: str, known: bool) -> None:
    assert is_encoding(name) is known
    assert not is_encoding("undefined")
    assert not is_encoding("idna")
    assert not is_encoding("a\0")


def test_the_encoding_that_a_file_seems_to_be_in_is_named(tmp_path: Path) -> None:
    rows = "".join(f"{n},荷物は明日お届けの予定です。\n" for n in range(5))
    (tmp_path / "t.csv").write_bytes(f"id,text\n{rows}".encode("cp932"))
    [first, *_] = read_pool([tmp_path / "t.csv"])
    assert isinstance(first, Rejected)
    assert first.reason.endswith("if the whole file is so, name another encoding, such as cp932, with --encoding")
    assert [row.text for row in read_pool([tmp_path / "t.csv"], encoding="cp932") if isinstance(row, Candidate)][
        :1
    ] == ["荷物は明日お届けの予定です。"]
