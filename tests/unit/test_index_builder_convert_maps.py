"""The maps that come along, each tried on a small file of the shape that its tool publishes."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import jmespath
import pytest
from foreign import converted, lines, written

from polyrank.index_builder.convert.conversion import UnknownKind, beginning_of_a_map, kind_of, kinds_of
from polyrank.index_builder.convert.maps import Map, map_of, read_map, shipped
from polyrank.index_builder.convert.reads import Reads
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput

FILES = {re.split(r"\.(?!1\b)", path.name)[0]: path for path in (Path(__file__).parents[1] / "data/convert").iterdir()}
MAPS = Path(__file__).parents[2] / "index_builder/convert/maps"
PAGE = Path(__file__).parents[2] / "docs/how-to/your-files.md"
Q, A, Q2, A2 = "Where is my parcel?", "What is its number?", "It is 5519.", "It comes tomorrow."
WRONG, TWO = "No idea.", [([Q], A), ([Q, A, Q2], A2)]
NAMED = ("slack", "discord", "telegram", "whatsapp", "teams")  # the file says who speaks, and nobody who answers
# Every other sample gives TWO.
OTHERS: dict[str, list[tuple[list[str], str]]] = {
    "argilla": [([Q, A, Q2], A2), ([Q], A), ([Q], A)],
    "beir": [(["query 0"], "Title 0 text 0")],
    "chatgpt": [([Q], A), ([Q], "Which parcel?"), ([Q, A, Q2], A2)],
    "dolly": [([f"{Q2}\n{Q}"], A2)],
    "dstc7": [([Q, A, Q2], A2)],
    "hh-rlhf": [([Q, A, Q2], A2)],
    "label-studio": [([Q, A, Q2], A2)],
    "llama-factory": [(["Be brief.", Q, A, "It is\n5519."], A2), ([Q], A)],
    "llama-factory-kto": [([Q], A), ([Q2], A2)],
    "llama-factory-preference": [([Q, A, Q2], A2), ([Q], A)],
    "ms-marco": [([Q], A2)],
    "ms-marco-triples": [([Q], A2), ([Q], A2)],
    "oasst": [([Q, A, Q2], A2), ([Q], A), ([Q], "Which parcel?")],
    "oasst-trees": [([Q], A), ([Q, A, Q2], A2), ([Q], "Which parcel?")],
    "openai": [(["Be brief.", Q, A, Q2], A2)],
    "openai-preference": [([Q, A, Q2], A2)],
    "parlai": [*TWO, (["hello", "hi"], "yo"), (["hello", "hi"], "hey")],
    "parlai-fields": [*TWO, (["hi"], "hey")],
    "preference": [(["Be brief.", Q], A)],
    "prompt-completion": [([Q], A)],
    "quac": [([Q], A), ([Q, A, "Why?", "CANNOTANSWER", Q2], A2)],
    "question-answer": [([Q], A)],
    "slack": [([f"{Q[:-1]} & bill?"], A), ([f"{Q[:-1]} & bill?", A, Q2], A2)],
    "squad": [(["When are parcels sent?"], "The shop sends parcels on Mondays.")],
    "telegram": [([Q], "See https://shop.example/track."), ([Q, "See https://shop.example/track.", Q2], A2)],
    "trl-preference": [([Q, A, Q2], A2), ([Q], A)],
    "trl-kto": [([Q], A), ([Q2], A2)],
    "ubuntu-csv": [([f"{Q} Hello?", A], Q2)],
    "whatsapp": [([f"{Q}\nI have waited."], A), ([f"{Q}\nI have waited.", A, Q2], A2)],
}
DOCUMENTS = {"elasticsearch", "elasticsearch-bulk", "qdrant", "hf-documents"}


def asked(name: str) -> dict[str, Any]:
    return {"answering": ("Anna",)} if name in NAMED else {}


def read(folder: Path) -> list[tuple[list[str], str]]:
    rows = written(folder)
    return [
        ([each if isinstance(each, str) else each["content"] for each in row["context"]], row["response"])
        for row in rows
    ]


def test_each_map_has_a_sample() -> None:
    assert {*FILES} == {*shipped()}


@pytest.mark.parametrize("name", shipped())
def test_a_map_has_at_most_20_lines_and_every_path_of_it_is_one(name: str) -> None:
    content = (MAPS / f"{name}.toml").read_text()
    assert content.count("\n") <= 20
    assert shipped()[name].about
    assert shipped()[name].told_by or shipped()[name].collection


@pytest.mark.parametrize("name", shipped())
def test_a_file_of_the_published_shape_is_of_one_kind_and_becomes_what_it_says(name: str, tmp_path: Path) -> None:
    assert kind_of(FILES[name]).map.called == name
    done = converted(tmp_path, FILES[name], **asked(name))
    if name in DOCUMENTS:
        assert [(row["id"], row["text"]) for row in written(tmp_path, "pool")] == [("0", A), ("1", A2)]
    else:
        assert read(tmp_path) == OTHERS.get(name, TWO)
        assert "nobody" not in " ".join(done.left_out)


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("parlai", "candidates", [[WRONG, A], None, None, None]),
        ("parlai", "persona", [["i sell things."], ["i sell things."], None, None]),
        ("parlai-fields", "persona", [["i sell things."], ["i sell things."], None]),
        ("personachat", "candidates", [[WRONG, A], [WRONG, A2]]),
        ("dstc7", "candidates", [[WRONG, A2]]),
        ("hh-rlhf", "negatives", [[WRONG]]),
        ("llama-factory-preference", "negatives", [[WRONG], [WRONG]]),
        ("openai-preference", "negatives", [[WRONG]]),
        ("trl-preference", "negatives", [[WRONG], [WRONG]]),
        ("ms-marco", "negatives", [[WRONG]]),
        ("zendesk", "metadata", [{"subject": "Parcel", "tags": ["shipping"]}] * 2),
        ("freshdesk", "metadata", [{"subject": "Parcel", "language": "en", "tags": ["shipping"]}] * 2),
        ("helpscout", "metadata", [{"subject": "Parcel", "tags": ["shipping"]}] * 2),
    ],
)
def test_what_goes_with_a_reply(name: str, field: str, values: list[Any], tmp_path: Path) -> None:
    converted(tmp_path, FILES[name], **asked(name))
    assert [row.get(field) for row in written(tmp_path)] == values


@pytest.mark.parametrize(
    ("name", "metadata"), [("qdrant", [{"source": "a"}, {"lang": "en"}]), ("elasticsearch", [{"tags": ["a"]}] * 2)]
)
def test_other_fields_of_a_document_are_metadata_but_for_vectors(
    name: str, metadata: list[Any], tmp_path: Path
) -> None:
    converted(tmp_path, FILES[name])
    assert [row["metadata"] for row in written(tmp_path, "pool")] == metadata


def shuffled(name: str, draw: Random) -> str:
    """The sample with its messages in another order: those of a list, or rows."""
    used, path = shipped()[name], FILES[name]
    if path.suffix == ".csv":
        head, *rows = re.findall(r'(?:"[^"]*"|[^"\n])+\n', path.read_text())
        return head + "".join(draw.sample(rows, len(rows)))
    value = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.suffix == ".jsonl"
        else json.loads(path.read_text())
    )
    place = {"intercom": "conversation_parts.conversation_parts", "livechat": "thread.events"}.get(
        name, used.paths.get("messages", "")
    )
    each = next(
        (each for each in used.each if each and jmespath.search(each, value)), "[]" if isinstance(value, list) else "@"
    )
    found = (
        [
            record[place] if place in record else jmespath.search(place, record)
            for record in (jmespath.search(each, value) if each != "@" else [value])
        ]
        if place
        else [jmespath.search(each.removesuffix("[]"), value) if each != "[]" else value]
    )
    for messages in found:
        draw.shuffle(messages)
    return lines(value) if path.suffix == ".jsonl" else json.dumps(value)


TIMED = [name for name, used in shipped().items() if "time" in used.paths and name not in ("slack", "whatsapp")]


@pytest.mark.parametrize("name", TIMED)
def test_shuffled_messages_with_times_give_the_same_examples(name: str, tmp_path: Path) -> None:
    draw = Random(name)
    orders = set()
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        file = tmp_path / f"{FILES[name].stem}{FILES[name].suffix}"
        file.write_text(shuffled(name, draw))
        orders.add(file.read_text())
        converted(tmp_path / str(number), file, **asked(name))
        assert read(tmp_path / str(number)) == OTHERS.get(name, TWO)
    assert len(orders) > 1


def test_days_of_slack_and_lines_of_whatsapp_are_ordered_by_their_times(tmp_path: Path) -> None:
    folder = tmp_path / "export" / "help"
    folder.mkdir(parents=True)
    days = [json.loads(day.read_text()) for day in sorted(FILES["slack"].glob("help/*"))]
    for name, day in zip("ab", days[::-1], strict=True):
        (folder / f"{name}.json").write_text(json.dumps(day[::-1]))
    converted(tmp_path, tmp_path / "export", answering=("Anna",))
    assert read(tmp_path) == OTHERS["slack"]
    (tmp_path / "second").mkdir()
    said = FILES["whatsapp"].read_text().replace("\nI have", " I have").splitlines()
    (tmp_path / "chat.txt").write_text("\n".join(said[::-1]))
    converted(tmp_path / "second", tmp_path / "chat.txt", answering=("Anna",))
    assert [reply for _, reply in read(tmp_path / "second")] == [A, A2]


@pytest.mark.parametrize("private", ["false", "FALSE", "False", "No", "no", "0", "FALSCH", "FAUX", "nein", "いいえ"])
def test_a_note_of_zendesk_is_no_reply_however_a_program_writes_the_table(private: str, tmp_path: Path) -> None:
    (tmp_path / "z.csv").write_text(FILES["zendesk-csv"].read_text().replace("Agent,false", f"Agent,{private}"))
    converted(tmp_path, tmp_path / "z.csv")
    assert read(tmp_path) == TWO


def test_what_a_phone_writes_in_place_of_a_message_is_none(tmp_path: Path) -> None:
    said = [
        "[01.02.26, 10:00:00] Anna: \u200eNachrichten sind Ende-zu-Ende-verschlüsselt.",
        f"[01.02.26, 10:00:01] \u200eBen: {Q}",
        "\u200e[01.02.26, 10:00:02] Anna: \u200eBild weggelassen",
        "\u200e[01.02.26, 10:00:03] Anna: \u200e<Anhang: 7.jpg>",
        f"\u200e[01.02.26, 10:00:04] Anna: {A} \u200e<Diese Nachricht wurde bearbeitet.>",
    ]
    (tmp_path / "iphone.txt").write_text("\n".join(said))
    converted(tmp_path / "1", tmp_path / "iphone.txt", answering=("Anna",))
    assert read(tmp_path / "1") == [([Q], A)]
    texts = ["<Médias omis>", "null", "You deleted this message", "Diese Nachricht wurde gelöscht", A]
    said = [f"01/02/26, 10:00 - Ben: {Q}", *(f"01/02/26, 10:01 - Anna: {text}" for text in texts)]
    (tmp_path / "android.txt").write_text("\n".join(said))
    converted(tmp_path / "2", tmp_path / "android.txt", answering=("Anna",))
    assert read(tmp_path / "2") == [([Q], A)]


@pytest.mark.parametrize("name", [name for name in FILES if FILES[name].suffix == ".jsonl"])
def test_a_field_that_nothing_reads_is_named_with_its_first_record(name: str, tmp_path: Path) -> None:
    file = tmp_path / FILES[name].name
    rows = [json.loads(line) for line in FILES[name].read_text().splitlines()]
    other = rows[-1] if name != "elasticsearch-bulk" else rows[1]
    file.write_text(lines([*rows, *([rows[0]] if name == "elasticsearch-bulk" else []), {**other, "mood": "cross"}]))
    done = converted(tmp_path, file)
    keeps_all = shipped()[name].keep == "@"
    assert done.unread["mood"] == (0 if keeps_all else 1)
    if not keeps_all:
        assert done.first["mood"].endswith(f":{len(rows) + 1}")


def test_nothing_below_a_path_is_unread_and_everything_beside_it_is() -> None:
    used = map_of(
        "m", {"messages": "a.b[?ok].c | [0]", "text": "t || u", "keep": {"k": "more"}, "conversation": "id"}, "m"
    )
    record = {
        "id": 1,
        "a": {"b": [{"ok": True, "c": {"t": 1, "v": 2}}], "d": 3},
        "more": {"x": 1},
        "e": {"f": 1},
        "g": None,
    }
    assert [*Reads(used).unread(record)] == ["a.b.c.v", "a.d", "e"]


def test_trees_are_read_below_their_replies() -> None:
    used = map_of("m", {"messages": "[p]", "replies": "r", "text": "t"}, "m")
    record = {"p": {"t": "a", "r": [{"t": "b", "r": [{"t": "c", "s": 1}]}]}}
    assert [*Reads(used).unread(record)] == ["p.r.r.s"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"text": "a["}, "text is no path of JMESPath"),
        ({"txt": "a"}, "'txt' is no key of a map; there are about, "),
        ({"about": "x"}, "it says neither messages, nor text, nor right"),
        ({"text": 5}, "text must be a text"),
        ({"text": "a", "told_by": [1]}, "told_by must be a list of texts"),
        ({"text": "a", "told_by": "a b c"}, "told_by is no path"),
        ({"text": "a", "keep": {"x": "("}}, "keep is no path"),
        ({"text": "a", "joined": "yes"}, "joined must be true or false"),
        ({"text": "a", "texts": "word"}, "texts must be one of plain, entities, html, mail"),
        ({"text": "a", "lines": "("}, "lines is no regular expression"),
    ],
)
def test_a_map_that_cannot_be_used_says_why(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        map_of("m", content, "m.toml")


@pytest.mark.parametrize("content", [b"a = ", b"\xff", b"[" * 10_000])
def test_a_file_that_is_no_map_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_bytes(content)
    for path in (tmp_path / "m.toml", tmp_path / "none.toml"):
        with pytest.raises(InvalidInput, match="is no map"):
            read_map(path)


def test_a_function_that_cannot_take_what_is_there_costs_the_record() -> None:
    used = map_of("m", {"text": "join('', n)"}, "m")
    with pytest.raises(RowError, match="text: "):
        used.find("text", {"n": 5})


def test_a_draft_finds_texts_without_spaces_and_marks_of_notes(tmp_path: Path) -> None:
    says = [
        ("荷物はいつ届きますか？", "顧客", "TRUE"),
        ("明日お届けの予定です。", "担当者", "TRUE"),
        ("要注意", "担当者", "FALSE"),
    ]
    rows = "".join(f"7,{text},{who},2026/11/01 10:0{n},{public}\n" for n, (text, who, public) in enumerate(says))
    (tmp_path / "t.csv").write_text(f"番号,本文,種別,日時,公開\n{rows}")
    _, draft = beginning_of_a_map(tmp_path / "t.csv")
    for line in ('text = "\\"本文\\""', 'who = "\\"種別\\""', 'time = "\\"日時\\""', '# only = "\\"公開\\""'):
        assert f"\n{line}" in draft, draft


# What no map knows, and what is to be changed in its draft.
TURNS = [("Kunde", Q), ("Mitarbeiter", A), ("Kunde", Q2), ("Mitarbeiter", A2)]
AT = ["02.01.2026 10:00", "02.01.2026 10:05", "02.01.2026 10:09", "13.01.2026 10:12"]
STRANGE: dict[str, tuple[Any, dict[str, str]]] = {
    "german lists": (
        [{"vorgang": 7, "verlauf": [{"wer": w, "inhalt": t, "zeit": z} for (w, t), z in zip(TURNS, AT, strict=True)]}],
        {},
    ),
    "german table": (
        "Vorgang;Wer;Nachricht;Wann\n" + "".join(f"7;{w};{t};{z}\n" for (w, t), z in zip(TURNS, AT, strict=True)),
        {},
    ),
    "japanese": (
        [
            {
                "番号": "a1",
                "会話": [{"役割": {"Kunde": "顧客", "Mitarbeiter": "担当者"}[w], "内容": t} for w, t in TURNS],
            }
        ],
        {"answering": '["担当者"]'},
    ),
    "speakers are objects": (
        [
            {"res_id": 7, "html": f"<p>{t}</p>", "author": {"kind": w}, "date": f"2026-01-02 10:0{n}"}
            for n, (w, t) in enumerate(TURNS)
        ],
        {},
    ),
    "deep": (
        {
            "export": {
                "threads": [
                    {"key": "a-1", "log": [{"by": w, "at": 1767348000 + n, "say": t} for n, (w, t) in enumerate(TURNS)]}
                ]
            }
        },
        {},
    ),
    "an object of talks": (
        {"talks": {f"t{n}": {"lines": [{"s": w, "l": t} for w, t in TURNS]} for n in range(2)}},
        {"each": '"talks.*"', "conversation": '"_key"', "messages": '"lines"', "told_by": '["lines"]'},
    ),
    "a flag tells the side": (
        [{"case": 7, "staff": w == "Mitarbeiter", "words": t} for w, t in TURNS],
        {"who": '"staff"', "answering": '["True"]', "conversation": '"case"'},
    ),
    "pairs": (
        [{"frage": Q, "antwort": A}, {"frage": Q2, "antwort": A2}],
        {"text": None, "first": '"frage"', "right": '"antwort"', "conversation": None},
    ),  # type: ignore[dict-item]
    "texts in turn": ([{"rede": [t for _, t in TURNS], "nummer_id": "x"}], {}),
    "lists field by field": (
        [{"case_id": 1, "says": {"who": [w for w, _ in TURNS], "what": [t for _, t in TURNS]}}],
        {
            "messages": '"rows(says)"',
            "who": '"who"',
            "text": '"what"',
            "told_by": '["says.what"]',
            "answering": '["Mitarbeiter"]',
            "each": None,
        },
    ),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("shape", STRANGE)
def test_what_no_map_knows_is_refused_with_its_fields_and_a_draft_that_a_few_lines_complete(
    shape: str, tmp_path: Path
) -> None:
    content, changes = STRANGE[shape]
    file = tmp_path / f"in.{'csv' if isinstance(content, str) else 'json'}"
    file.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    with pytest.raises(UnknownKind, match=r"no map fits it.*--draft map\.toml") as refused:
        kind_of(file)
    tree = "\n".join(refused.value.fields.tree())
    assert Q in tree
    _, draft = beginning_of_a_map(file)
    assert len(changes) < 10
    for key, value in changes.items():
        kept = [line for line in draft.splitlines() if not re.match(rf"(# )?{key} = ", line)]
        draft = "\n".join([*kept, *([] if value is None else [f"{key} = {value}"])])
    (tmp_path / "map.toml").write_text(draft)
    own = read_map(tmp_path / "map.toml")
    assert kind_of(file, [own]).map.called == "map"
    from polyrank.index_builder.convert.conversion import convert
    from polyrank.index_builder.convert.talks import Asked

    convert(kinds_of([file], own, {}), tmp_path / "out", Asked(), lambda *_: None)
    found = read(tmp_path)
    assert found[:2] == ([([Q], A), ([Q2], A2)] if shape == "pairs" else TWO)


def test_the_page_has_a_table_of_all_maps() -> None:
    table = PAGE.read_text()
    for name, used in shipped().items():
        assert f"| `{name}` | {used.about} |" in table, name
    assert table.count("\n| `") >= len(shipped())


def test_several_maps_that_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(
        json.dumps({"question": "q", "answer": "a", "prompt": "p", "completion": "c"}) + "\n"
    )
    with pytest.raises(
        UnknownKind, match=r"may be prompt-completion \(.*\) or question-answer \(.*\); name it by --from"
    ):
        kind_of(tmp_path / "f.jsonl")


def test_what_nearly_fits_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(json.dumps({"conversations": [{"from": "human", "val": "q"}]}) + "\n")
    with pytest.raises(UnknownKind, match=r"nearly fit: sharegpt lacks conversations\[0\].value != null"):
        kind_of(tmp_path / "f.jsonl")


def test_maps_say_what_they_are() -> None:
    assert isinstance(shipped()["openai"], Map)
