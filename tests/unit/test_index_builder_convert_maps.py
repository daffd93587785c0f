"""The maps that come along, each tried on a small file of the shape that its tool publishes."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jmespath
import pytest
from foreign import converted, lines, written
from samples import A2, DOCUMENTS, FILES, OTHERS, Q2, TWO, WRONG, A, Q, asked, read

from polyrank.index_builder.convert.conversion import convert
from polyrank.index_builder.convert.kinds import UnknownKind, beginning_of_a_map, kind_of, kinds_of
from polyrank.index_builder.convert.maps import Map, map_of, read_map, shipped, value_at
from polyrank.index_builder.convert.reads import Reads
from polyrank.index_builder.convert.talks import ConvertOptions
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput

MAPS = Path(__file__).parents[2] / "index_builder/convert/maps"
PAGE = Path(__file__).parents[2] / "docs/how-to/your-files.md"


def test_each_map_has_a_sample() -> None:
    assert {*FILES} == {*shipped()}


@pytest.mark.parametrize("name", shipped())
def test_a_map_has_at_most_20_lines_and_every_path_of_it_is_one(name: str) -> None:
    assert (MAPS / f"{name}.toml").read_text().count("\n") <= 20
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


@pytest.mark.parametrize(("name", "field", "values"), [
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
])  # fmt: skip
def test_what_goes_with_a_reply(name: str, field: str, values: list[Any], tmp_path: Path) -> None:
    converted(tmp_path, FILES[name], **asked(name))
    assert [row.get(field) for row in written(tmp_path)] == values


@pytest.mark.parametrize(
    ("name", "metadata"), [("qdrant", [{"source": "a"}, {"lang": "en"}]), ("elasticsearch", [{"tags": ["a"]}] * 2)]
)
def test_other_fields_of_a_document_are_metadata_but_for_vectors(name: str, metadata: list[Any], tmp_path) -> None:
    converted(tmp_path, FILES[name])
    assert [row["metadata"] for row in written(tmp_path, "pool")] == metadata


def test_days_of_slack_and_lines_of_whatsapp_are_ordered_by_their_times(tmp_path: Path) -> None:
    folder = tmp_path / "export" / "help"
    folder.mkdir(parents=True)
    shutil.copy(FILES["slack"] / "users.json", folder.parent)
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


@pytest.mark.parametrize(("name", "messages", "marks"), [
    ("zendesk", "comments", {"via": {"channel": "web", "source": {"rel": "merge"}}}),
    ("zendesk", "comments", {"type": "VoiceComment"}),
    ("zendesk", "comments", {"author_id": -1}),
    ("intercom", "conversation_parts.conversation_parts", {"redacted": True}),
    ("intercom", "conversation_parts.conversation_parts", {"part_type": "assignment", "assigned_to": {"id": "8"}}),
    ("chatwoot", "payload", {"content_attributes": {"deleted": True}}),
    ("freshdesk", "[0].conversations", {"source": 8}),
])  # fmt: skip
def test_what_a_tool_writes_of_a_merge_a_call_or_what_was_deleted_is_no_reply(
    name: str, messages: str, marks: dict[str, Any], tmp_path: Path
) -> None:
    document = json.loads(FILES[name].read_text())
    said = jmespath.search(messages, document)
    texts = {key: "This message was deleted" for key in said[-1] if "body" in key or key == "content"}
    said.append({**said[-1], **texts, **marks})
    (tmp_path / "in.json").write_text(json.dumps(document))
    converted(tmp_path, tmp_path / "in.json")
    assert read(tmp_path) == TWO


def test_what_an_agent_of_intercom_says_by_taking_a_conversation_is_a_reply(tmp_path: Path) -> None:
    talk = json.loads(FILES["intercom"].read_text())
    said = jmespath.search("conversation_parts.conversation_parts", talk)
    said[-1] |= {"part_type": "assignment", "assigned_to": said[-1]["author"]}
    (tmp_path / "in.json").write_text(json.dumps(talk))
    converted(tmp_path, tmp_path / "in.json")
    assert read(tmp_path) == TWO


def test_who_gets_a_copy_of_a_ticket_of_zendesk_does_not_answer_it(tmp_path: Path) -> None:
    ticket = json.loads(FILES["zendesk"].read_text())
    ticket["assignee_id"] = ticket["comments"][1]["author_id"]
    ticket["email_cc_ids"] = [55, ticket["assignee_id"]]
    ticket["comments"].insert(3, {**ticket["comments"][0], "author_id": 55, "plain_body": "I am her husband."})
    ticket["comments"][3]["created_at"] = "2026-01-02T10:06:00Z"
    (tmp_path / "in.json").write_text(json.dumps(ticket))
    converted(tmp_path, tmp_path / "in.json")
    assert read(tmp_path) == [([Q], A), ([Q, A, "I am her husband.", Q2], A2)]


def test_a_ticket_of_freshdesk_that_an_agent_began_does_not_begin_with_the_customer(tmp_path: Path) -> None:
    tickets = json.loads(FILES["freshdesk"].read_text())
    (tmp_path / "in.json").write_text(json.dumps([{**tickets[0], "source": 10}]))
    converted(tmp_path, tmp_path / "in.json")
    assert [turn["role"] for turn in written(tmp_path)[-1]["context"]] == ["assistant", "assistant", "user"]
    assert read(tmp_path) == TWO[1:]


@pytest.mark.parametrize("kind", ["customer", "phone"])
def test_what_a_customer_said_and_an_agent_of_help_scout_put_in_is_no_reply(kind: str, tmp_path: Path) -> None:
    talks = json.loads(FILES["helpscout"].read_text())
    for thread in jmespath.search("_embedded.conversations[]._embedded.threads[?type == 'customer'][]", talks):
        thread |= {"type": kind, "createdBy": {**thread["createdBy"], "type": "user"}}
    (tmp_path / "in.json").write_text(json.dumps(talks))
    converted(tmp_path, tmp_path / "in.json")
    assert read(tmp_path) == TWO


def test_what_claude_did_and_how_a_tool_was_called_is_not_said_by_anybody(tmp_path: Path) -> None:
    said = json.loads(FILES["claude"].read_text())
    blocks = [{"type": "tool_use", "name": "t", "input": {}}, {"type": "text", "text": A}]
    said[0]["chat_messages"][1] |= {"text": f"This block is not supported.\n{A}", "content": blocks}
    only_blocks = {"text": "This block is not supported.", "content": blocks[:1]}
    said[0]["chat_messages"].append(said[0]["chat_messages"][1] | only_blocks)
    (tmp_path / "in.json").write_text(json.dumps(said))
    converted(tmp_path / "1", tmp_path / "in.json")
    assert read(tmp_path / "1") == TWO
    talk = [("human", Q), ("function_call", "{}"), ("observation", "5"), ("gpt", A)]
    rows = [{"conversations": [{"from": who, "value": text} for who, text in talk]}]
    (tmp_path / "t.jsonl").write_text(lines(rows))
    converted(tmp_path / "2", tmp_path / "t.jsonl")
    assert [turn["role"] for turn in written(tmp_path / "2")[0]["context"]] == ["user", "tool", "tool"]


def test_each_chat_of_a_whole_account_of_telegram_is_a_conversation(tmp_path: Path) -> None:
    chat = json.loads(FILES["telegram"].read_text())
    other = {**chat, "id": 4712, "messages": [{**each, "from": "Eva"} for each in chat["messages"][:2]]}
    other["messages"] += [{**other["messages"][1], "text": "a" * 2**20} for _ in range(5)]  # more than the sample holds
    none = {**chat, "id": 4713, "messages": []}
    (tmp_path / "result.json").write_text(json.dumps({"about": "x", "chats": {"list": [other, none, chat]}}))
    converted(tmp_path, tmp_path / "result.json", answering=("Anna",))
    assert read(tmp_path) == OTHERS.get("telegram", TWO)


@pytest.mark.parametrize("begin", [
    ("2/1/26, 10:0{n} a.\u00a0m. - ", "2/1/26, 9:0{n} p.\u00a0m. - "),
    ("[2/1/26, 10:0{n}:00\u202fAM] ", "[2/1/26, 9:0{n}:00\u202fPM] "),
    ("\u200f٢\u200f/١\u200f/٢٠٢٦، ١٠:٠{n} ص - ", "\u200f٢\u200f/١\u200f/٢٠٢٦، ٩:٠{n} م - "),
    ("2026. 1. 2. 오전 10:0{n} - ", "2026. 1. 2. 오후 9:0{n} - "),
    ("2026/01/02 10:0{n} - ", "2026/01/02 21:0{n} - "),
])  # fmt: skip
def test_chats_of_whatsapp_in_other_languages(begin: tuple[str, str], tmp_path: Path) -> None:
    said = [f"{begin[n > 1].format(n=n)}{('Max', 'Anna')[n % 2]}: {text}" for n, text in enumerate([Q, A, Q2, A2])]
    (tmp_path / "chat.txt").write_text("\n".join(said[::-1]))
    converted(tmp_path, tmp_path / "chat.txt", answering=("Anna",), order="day-first")
    assert read(tmp_path) == TWO


def test_letters_that_facebook_wrote_as_bytes_are_read(tmp_path: Path) -> None:
    said = [
        {"sender_name": who, "content": text.encode().decode("latin-1")}
        for who, text in (("Ben", "Wo?"), ("Zoë", "Später, 👍"))
    ]
    said = [
        {**each, "sender_name": each["sender_name"].encode().decode("latin-1"), "timestamp_ms": n + 1}
        for n, each in enumerate(said)
    ]
    (tmp_path / "m.json").write_text(json.dumps({"participants": [{"name": "x"}], "messages": said, "title": "x"}))
    converted(tmp_path, tmp_path / "m.json", answering=("Zoë",))
    assert read(tmp_path) == [(["Wo?"], "Später, 👍")]


@pytest.mark.parametrize("more", [
    {"content": "Reacted \u00f0\u009f\u0091\u008d to your message "},
    {"content": "Liked a message"},
    {"content": "Anna sent an attachment.", "share": {"link": "https://shop.example"}},
    {"content": "You missed a call from Max.", "call_duration": 0},
    {"content": "Anna added Eva to the group.", "type": "Subscribe", "users": [{"name": "Eva"}]},
])  # fmt: skip
def test_what_messenger_writes_of_reactions_files_and_calls_is_no_reply(more: dict[str, Any], tmp_path: Path) -> None:
    chat = json.loads(FILES["messenger"].read_text())
    chat["messages"].insert(0, {**chat["messages"][0], "timestamp_ms": 1767348900000, **more})
    (tmp_path / "in.json").write_text(json.dumps(chat))
    converted(tmp_path, tmp_path / "in.json", answering=("Anna",))
    assert read(tmp_path) == TWO


def test_the_pages_of_a_chat_of_messenger_are_one_conversation(tmp_path: Path) -> None:
    chat = json.loads(FILES["messenger"].read_text())
    pages = [tmp_path / f"message_{number}.json" for number in (1, 2)]
    for page, part in zip(pages, (slice(2), slice(2, None)), strict=True):
        page.write_text(json.dumps({**chat, "messages": chat["messages"][part]}))
    converted(tmp_path, *pages, answering=("Anna",))
    assert read(tmp_path) == TWO


def test_a_chat_of_messenger_with_encryption_is_read(tmp_path: Path) -> None:
    said = [("Max", Q), ("Anna", A), ("Max", Q2), ("Anna", A2), ("Anna", "User unsent a message"), ("Anna", "")]
    rows = [
        {
            "senderName": who,
            "text": text,
            "timestamp": 1767348000000 + at,
            "type": "text",
            "isUnsent": False,
            "media": [],
        }
        for at, (who, text) in enumerate(said)
    ]
    rows[4] |= {"type": "placeholder", "isUnsent": True}
    chat = {"participants": ["Max", "Anna"], "threadName": "Max_7", "messages": rows}
    (tmp_path / "Max_7.json").write_text(json.dumps(chat))
    converted(tmp_path, tmp_path / "Max_7.json", answering=("Anna",))
    assert read(tmp_path) == TWO


def test_replies_that_teams_lists_in_what_they_answer_are_messages(tmp_path: Path) -> None:
    page = json.loads(FILES["teams"].read_text())
    *replies, event, asks = page["value"]
    (tmp_path / "in.json").write_text(json.dumps({"value": [event, {**asks, "replies": replies}]}))
    converted(tmp_path, tmp_path / "in.json", answering=("Anna",))
    assert read(tmp_path) == TWO


def test_who_has_no_name_in_teams_is_called_by_an_id(tmp_path: Path) -> None:
    page = json.loads(FILES["teams"].read_text())
    for each in page["value"]:
        if each["from"] and each["from"]["user"]["id"] == "Anna":
            each["from"]["user"] |= {"id": "8ea0", "displayName": None}  # an account that is deleted
    (tmp_path / "in.json").write_text(json.dumps(page))
    converted(tmp_path, tmp_path / "in.json", answering=("8ea0",))
    assert read(tmp_path) == TWO


def test_a_table_of_one_chat_is_a_conversation_by_its_file(tmp_path: Path) -> None:
    rows = [f"2026-01-02 10:0{at},{who},{text}\n" for at, (who, text) in enumerate([("벤", Q), ("안나", A)])]
    for name in ("a.csv", "b.csv"):  # as KakaoTalk writes them
        (tmp_path / name).write_text("".join(["Date,User,Message\n", *rows]))
    columns = {"conversation": "_file", "who": "User", "text": "Message", "time": "Date"}
    converted(tmp_path, tmp_path / "a.csv", tmp_path / "b.csv", columns=columns, answering=("안나",))
    assert [row["dialogue"] for row in written(tmp_path)] == ["a.csv", "b.csv"]
    assert read(tmp_path) == [([Q], A)] * 2


def test_what_a_bot_of_discord_answers_to_a_command_is_a_reply(tmp_path: Path) -> None:
    channel = json.loads(FILES["discord"].read_text())
    channel["messages"][-1]["type"] = "20"
    (tmp_path / "in.json").write_text(json.dumps(channel))
    converted(tmp_path, tmp_path / "in.json", answering=("Anna",))
    assert read(tmp_path) == TWO


def slack_with(folder: Path, more: dict[str, Any]) -> Path:
    """A copy of Slack's sample whose last message is another."""
    copy = shutil.copytree(FILES["slack"], folder / "in") / "help/2026-01-03.json"
    copy.write_text(json.dumps([{**json.loads(copy.read_text())[-1], **more}]))
    return folder / "in"


@pytest.mark.parametrize("more", [
    {"subtype": "file_share", "files": [{}]},
    {"subtype": "me_message"},
    {"files": [{}], "user_profile": None},  # a message with a file has no profile
    {"user_profile": {"real_name": "Anna M."}},  # as she was called then
])  # fmt: skip
@pytest.mark.parametrize("users", ["users.json", "org_users.json"])
def test_what_a_person_says_in_slack_is_hers_whatever_stands_beside_it(users: str, more, tmp_path: Path) -> None:
    export = slack_with(tmp_path, more)
    (export / "users.json").rename(export / users)
    done = converted(tmp_path, export, answering=("Anna",))
    assert read(tmp_path) == OTHERS["slack"]
    assert (done.messages.ours, done.messages.others) == ({"Anna": 2}, {"Max": 2})


@pytest.mark.parametrize("users", [None, "{", '{"ok": true}', "[1]", '[{"name": "anna"}]'])
def test_people_of_slack_are_called_by_their_ids_where_no_file_names_them(users: str | None, tmp_path: Path) -> None:
    export = slack_with(tmp_path, {"user_profile": None})
    (export / "users.json").unlink() if users is None else (export / "users.json").write_text(users)
    with pytest.raises(
        InvalidInput, match=r"nobody called Anna says anything; there are messages of U1 \(2\), U2 \(2\)"
    ):
        converted(tmp_path, export, answering=("Anna",))
    converted(tmp_path, export, answering=("U2",))
    assert read(tmp_path) == OTHERS["slack"]


@pytest.mark.parametrize(("file", "found"), [
    ("a.json", True), ("../a.json", True), ("../../a.json", False), ("in/a.json", False), ("{}/a.json", False),
])  # fmt: skip
def test_a_record_is_told_of_files_beside_it_and_no_others(file: str, found: bool, tmp_path: Path) -> None:
    row = {"id": "U1", "name": "Anna"}
    for folder in (tmp_path, tmp_path / "out", tmp_path / "out/in", tmp_path / "out/in/in"):
        folder.mkdir(exist_ok=True)
        (folder / "a.json").write_text(json.dumps([1, {"name": "a row without an id"}, row]))
    path = f"beside(_path, '{file.format(tmp_path)}', 'U1')"
    assert value_at(path, {"_path": str(tmp_path / "out/in/day.json")}, "who") == (row if found else None)


@pytest.mark.parametrize(("marked", "said"), [
    ("See <https://shop.example/a?b=1&amp;c|the &lt;list&gt;>, <https://shop.example>", "See the <list>, https://shop.example"),
    ("<@U1> <!here> <mailto:a@shop.example|a@shop.example> in <#C1|help>", "a@shop.example in #help"),
    ("<@U1|max>, <!subteam^S1|@team> on <!date^1767348000^{date}|Jan 2> &lt;Enter&gt;", "@max, @team on Jan 2 <Enter>"),
])  # fmt: skip
def test_marks_of_slack_are_read_as_they_are_shown(marked: str, said: str, tmp_path: Path) -> None:
    converted(tmp_path, slack_with(tmp_path, {"text": marked}), answering=("Anna",))
    assert read(tmp_path)[-1][1] == said


@pytest.mark.parametrize("more", [
    {"is_inbound": False, "author": {"id": "tea_1"}, "created_at": 1767348000.5},  # Front
    {"sender_id": "7", "group_id": "3", "name": "Anna"},  # GroupMe
    {"roomId": "r", "personId": "p", "created": "2026-01-02T10:00:00Z"},  # Webex
    {"ticket_id": None, "sender": "Anna"},  # a table of one's own
])  # fmt: skip
def test_messages_with_an_id_are_no_pool_of_documents(more: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps([{"id": n, "text": text, **more} for n, text in enumerate([Q, A])]))
    with pytest.raises(UnknownKind, match="no map fits it"):
        kind_of(tmp_path / "m.json")


def test_a_table_of_three_columns_is_not_taken_for_triples(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("Ticket\tWer\tText\n1\tKunde\tWo?\n1\tAnna\tHier.\n")
    with pytest.raises(UnknownKind, match="no map fits it"):
        kind_of(tmp_path / "t.tsv")


def test_what_a_phone_writes_in_place_of_a_message_is_none(tmp_path: Path) -> None:
    said = [
        "[01.02.26, 10:00:00] Anna: \u200eNachrichten sind Ende-zu-Ende-verschlüsselt.",
        f"[01.02.26, 10:00:01] \u200eBen: {Q}",
        "\u200e[01.02.26, 10:00:02] Anna: \u200eBild weggelassen",
        "\u200e[01.02.26, 10:00:03] Anna: \u200e<Anhang: 7.jpg>",
        "\u200e[01.02.26, 10:00:03] Anna: Rechnung 7.pdf • \u200e2 Seiten \u200eDokument weggelassen",
        "\u200e[01.02.26, 10:00:03] Anna: Rechnung 7.pdf • \u200e1 Seite \u200e<Anhang: 7.pdf>",
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


def test_files_and_marks_of_a_phone_are_no_words_and_what_stands_below_a_photo_is(tmp_path: Path) -> None:
    said = [
        f"Ben: {Q}",
        "Anna: IMG-20260201-WA0001.jpg (file attached)",
        "Anna: Rechnung 5519.pdf (Datei angehängt)",
        "Anna: Ce message a été supprimé",
        f"Anna: {A} <This message was edited>",
        f"Ben: VID-20260201-WA0002.mp4 (archivo adjunto)\n{Q2}",
        f"Anna: {A2}",
        "Anna: Press <Enter>",
    ]
    (tmp_path / "in.txt").write_text("\n".join(f"13/02/26, 10:0{at} - {each}" for at, each in enumerate(said)))
    converted(tmp_path, tmp_path / "in.txt", answering=("Anna",))
    assert read(tmp_path) == [*TWO, ([Q, A, Q2, A2], "Press <Enter>")]


def with_a_mood(name: str) -> str:
    """The sample with a field in its last record that no tool writes; text without fields has none."""
    used, path = shipped()[name], FILES[name]
    if path.suffix == ".csv":
        head, *rows = re.findall(r'(?:"[^"]*"|[^"\n])+\n', path.read_text())
        return (
            head.replace("\n", ",mood\n") + "".join(row[:-1] + ",\n" for row in rows[:-1]) + f"{rows[-1][:-1]},cross\n"
        )
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[-1]["mood"] = "cross"
        return lines(rows)
    value = json.loads(path.read_text())
    records = [value]
    for each in used.each:
        found = jmespath.search(f"{each}[]" if each.endswith("*") else each, value) if each else None
        records = found if isinstance(found, list) and found else records
    while isinstance(records[-1], list):
        records = records[-1]
    records[-1]["mood"] = "cross"
    return json.dumps(value)


@pytest.mark.parametrize("name", [name for name in FILES if FILES[name].suffix in (".json", ".jsonl", ".csv")])
def test_a_field_that_nothing_reads_is_named_with_its_first_record(name: str, tmp_path: Path) -> None:
    file = tmp_path / FILES[name].name
    file.write_text(with_a_mood(name))
    done = converted(tmp_path, file, **asked(name))
    named = [place for place in done.unread if place.endswith("mood")]
    if shipped()[name].keep == "@":
        assert named == []
    else:
        assert [done.unread[place] for place in named] == [1]
        assert re.fullmatch(rf"{re.escape(str(file))}:\d+", done.first[named[0]])


def test_nothing_below_a_path_is_unread_and_everything_beside_it_is() -> None:
    used = map_of(
        "m", {"messages": "a.b[?ok].c | [0]", "text": "t || u", "keep": {"k": "more"}, "conversation": "id"}, "m"
    )
    record = {
        "id": 1, "a": {"b": [{"ok": True, "c": {"t": 1, "v": 2}}], "d": 3}, "more": {"x": 1}, "e": {"f": 1}, "g": None,
    }  # fmt: skip
    assert [*Reads(used).unread(record)] == ["a.b.c.v", "a.d", "e"]


@pytest.mark.parametrize("messages", ["sort_by(a, &t)", "max_by(a[?z], &length(t))"])
def test_what_orders_messages_reads_no_more_than_it_names(messages: str) -> None:
    reads = Reads(map_of("m", {"messages": messages, "text": "x"}, "m"))
    assert [*reads.unread({"a": [{"t": "1", "x": 2, "y": 3}], "b": 1})] == ["a.y", "b"]


def test_trees_are_read_below_their_replies() -> None:
    used = map_of("m", {"messages": "[p]", "replies": "r", "text": "t"}, "m")
    record = {"p": {"t": "a", "r": [{"t": "b", "r": [{"t": "c", "s": 1}]}]}}
    assert [*Reads(used).unread(record)] == ["p.r.r.s"]


@pytest.mark.parametrize(("content", "reason"), [
    ({"text": "a["}, "text is no path of JMESPath"),
    ({"text": "[" * 1000 + "a" + "]" * 1000}, "text may be 64 parts deep"),
    ({"text": "a" + "|@" * 400}, "text may be 64 parts deep"),
    ({"text": "a" + "|[@,@][]" * 20}, "make 12 lists and objects"),
    ({"txt": "a"}, "'txt' is no key of a map; there are about, "),
    ({"about": "x"}, "it says neither messages, nor text, nor right"),
    ({"text": 5}, "text must be a text"),
    ({"text": "a", "told_by": [1]}, "told_by must be a list of texts"),
    ({"text": "a", "told_by": "a b c"}, "told_by is no path"),
    ({"text": "a", "keep": {"x": "("}}, "keep is no path"),
    ({"text": "a", "joined": "yes"}, "joined must be true or false"),
    ({"text": "a", "texts": "word"}, "texts must be one of plain, entities, slack, html, mail"),
    ({"text": "a", "lines": "("}, "lines is no regular expression"),
])  # fmt: skip
def test_a_map_that_cannot_be_used_says_why(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        map_of("m", content, "m.toml")


@pytest.mark.parametrize("content", [b"a = ", b"\xff", b"[" * 10_000, b"a." * 50_000 + b"a = 1"])
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
    ),
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
    ),
}


SAYS = [Q, A, Q2, A2]
SIDE = ("customer", "agent")
# Shapes that others publish, without a map: asappresearch/abcd, google-research-datasets/Taskmaster, "Customer Support
# on Twitter", rooms of Element, bulk exports of Mattermost, articles of Zammad, messages of Crisp and Front, Wizard of
# Wikipedia, logs of Amazon Lex.
PUBLISHED: dict[str, tuple[Any, dict[str, str | None]]] = {
    "abcd": (
        [
            {
                "convo_id": 3592,
                "scenario": {"personal": {"customer_name": "crystal minh"}, "flow": "product_defect"},
                "original": [
                    [SIDE[0], Q], [SIDE[1], A], ["action", "Account has been pulled up."], [SIDE[0], Q2], [SIDE[1], A2]
                ],
                "delexed": [{"speaker": "customer", "text": "where is it?", "turn_count": 1, "candidates": []}],
            }
        ],
        {
            "messages": '"original"', "text": '"[1]"', "who": '"[0]"', "answering": '["agent"]',
            "only": "\"[0] != 'action'\"",
        },
    ),
    "taskmaster": (
        [
            {
                "conversation_id": "dlg-00055f4e",
                "instruction_id": "auto-repair-1",
                "utterances": [
                    {"index": n, "speaker": ("USER", "ASSISTANT")[n % 2], "text": text, "segments": [{"text": "it"}]}
                    for n, text in enumerate(SAYS)
                ],
            }
        ],
        {},
    ),
    "tweets": (
        "tweet_id,author_id,inbound,created_at,text,response_tweet_id,in_response_to_tweet_id\n"
        + "".join(
            f"{n},{who},{who == 'Ben'},Tue Oct 31 22:1{n}:27 +0000 2017,{SAYS[n]},,{above}\n"
            for n, who, above in ((3, "Shop", 2), (2, "Ben", 1), (1, "Shop", 0), (0, "Ben", ""))
        ),
        {
            "conversation": None, "who": '"inbound"', "answering": '["False"]', "name": '"tweet_id"',
            "parent": '"in_response_to_tweet_id"',
        },
    ),
    "element": (
        {
            "room_name": "Help", "exported_by": "@anna:shop.example",
            "messages": [
                {
                    "type": "m.room.member", "sender": "@ben:x.example", "content": {"membership": "join"},
                    "origin_server_ts": 1767348000000, "event_id": "$0",
                },
                *(
                    {
                        "type": "m.room.message", "sender": ("@ben:x.example", "@anna:shop.example")[n % 2],
                        "content": {"msgtype": "m.text", "body": text}, "origin_server_ts": 1767348001000 + n,
                    }
                    for n, text in enumerate(SAYS)
                ),
            ],
        },
        {"who": '"sender"', "answering": '["@anna:shop.example"]'},
    ),
    "mattermost": (
        lines(
            [
                {"type": "version", "version": 1},
                {"type": "team", "team": {"name": "t", "display_name": "T", "type": "I"}},
                {
                    "type": "post",
                    "post": {
                        "team": "t", "channel": "help", "user": "ben", "message": Q, "create_at": 1767348001000,
                        "replies": [
                            {"user": ("ben", "anna")[n % 2], "message": SAYS[n], "create_at": 1767348002000 + n}
                            for n in (1, 2, 3)
                        ],
                    },
                },
            ]
        ),
        {"conversation": None, "first": '"post.message"', "answering": '["anna"]'},
    ),
    "zammad": (
        [
            *(
                {
                    "id": n, "ticket_id": 7, "type": "email", "sender": ("Customer", "Agent")[n % 2],
                    "body": f"<div>{text}</div>", "internal": False, "created_at": f"2026-01-02T10:0{n}:00.000Z",
                }
                for n, text in enumerate(SAYS)
            ),
            {
                "id": 9, "ticket_id": 7, "type": "note", "sender": "Agent", "body": "He is a VIP.", "internal": True,
                "created_at": "2026-01-02T10:00:30.000Z",
            },
        ],
        {"conversation": '"ticket_id"', "who": '"sender"', "answering": '["Agent"]', "only": '"!internal"'},
    ),
    "crisp": (
        {
            "error": False, "reason": "listed",
            "data": [
                *(
                    {
                        "session_id": "session_1", "type": "text", "from": ("user", "operator")[n % 2], "content": text,
                        "timestamp": 1767348001000 + n, "fingerprint": 100 + n,
                    }
                    for n, text in enumerate(SAYS)
                ),
                {
                    "session_id": "session_1", "type": "event", "from": "operator", "timestamp": 1767348009000,
                    "content": {"namespace": "state:resolved"}, "fingerprint": 9,
                },
            ],
        },
        {
            "told_by": '["fingerprint"]', "each": '"data[]"', "messages": None, "conversation": '"session_id"',
            "who": '"from"', "answering": '["operator"]', "only": "\"type == 'text'\"",
        },
    ),
    "front": (
        {
            "_links": {"self": "https://api.example/conversations/cnv_1/messages"},
            "_results": [
                {
                    "id": f"msg_{n}", "is_inbound": n % 2 == 0, "created_at": 1767348001.123 + n, "blurb": SAYS[n],
                    "body": f"<p>{SAYS[n]}</p>", "text": SAYS[n],
                }
                for n in (3, 2, 1, 0)
            ],
        },
        {"who": '"is_inbound"', "answering": '["False"]'},
    ),
    "wizard": (
        [
            {
                "chosen_topic": "Parcels", "persona": "i like parcels.",
                "dialog": [
                    {
                        "speaker": ("0_Apprentice", "1_Wizard")[n % 2], "text": text,
                        "retrieved_passages": [{"Post": ["The post is an institution of many countries and peoples."]}],
                    }
                    for n, text in enumerate(SAYS)
                ],
            }
        ],
        {
            "told_by": '["dialog[0].speaker"]', "each": None, "messages": '"dialog"', "text": '"text"',
            "who": '"speaker"', "answering": '["1_Wizard"]',
        },
    ),
    "lex": (
        lines(
            [
                {
                    "messageVersion": "2.0", "botName": "Help", "sessionId": "s1", "inputTranscript": asks,
                    "timestamp": f"2026-01-02T10:0{n}:00Z",
                    "messages": [{"content": says, "contentType": "PlainText"}],
                }
                for n, (asks, says) in enumerate([(Q2, A2), (Q, A)][::-1])
            ]
        ),
        {
            "messages": "\"[{who: 'user', text: inputTranscript}, {who: 'bot', text: messages[].content}]\"",
            "text": '"text"', "who": '"who"', "answering": '["bot"]', "time": '"_record.timestamp"', "joined": "true",
        },
    ),
}  # fmt: skip


def refused_and_completed(file: Path, changes: dict[str, str | None]) -> list[tuple[list[str], str]]:
    """The examples of a file that no map knows, by the draft of its map with fewer than ten lines changed."""
    with pytest.raises(UnknownKind, match=r"no map fits it.*--draft map\.toml") as refused:
        kind_of(file)
    tree = "\n".join(refused.value.fields.tree())
    assert any(shown in tree for shown in (*SAYS, "original[][]")), tree
    _, draft = beginning_of_a_map(file)
    assert len(changes) < 10
    for key, value in changes.items():
        kept = [line for line in draft.splitlines() if not re.match(rf"(# )?{key} = ", line)]
        draft = "\n".join([*kept, *([] if value is None else [f"{key} = {value}"])])
    own = file.parent / "map.toml"
    own.write_text(draft)
    assert kind_of(file, [read_map(own)]).map.called == "map"
    convert(kinds_of([file], read_map(own), {}), file.parent / "out", ConvertOptions(), lambda *_: None)
    return read(file.parent)


@pytest.mark.parametrize("shape", STRANGE)
def test_what_no_map_knows_is_refused_with_its_fields_and_a_draft_that_a_few_lines_complete(
    shape: str, tmp_path: Path
) -> None:
    content, changes = STRANGE[shape]
    file = tmp_path / f"in.{'csv' if isinstance(content, str) else 'json'}"
    file.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    found = refused_and_completed(file, changes)
    assert found[:2] == ([([Q], A), ([Q2], A2)] if shape == "pairs" else TWO)


@pytest.mark.parametrize("shape", PUBLISHED)
def test_published_shapes_without_a_map_are_refused_and_read_by_a_few_lines(shape: str, tmp_path: Path) -> None:
    content, changes = PUBLISHED[shape]
    suffix = "json" if not isinstance(content, str) else "csv" if shape == "tweets" else "jsonl"
    file = tmp_path / f"in.{suffix}"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert refused_and_completed(file, changes) == TWO


def test_the_page_lists_all_maps() -> None:
    listed = re.findall(r"^\* `([\w.-]+)`: (.+)$", PAGE.read_text().split("## Maps that come along")[1], re.MULTILINE)
    assert listed == [(name, used.about) for name, used in shipped().items()]


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
