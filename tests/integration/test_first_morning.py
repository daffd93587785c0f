"""A new team's first morning, as they would spend it, in German and in Japanese: nothing wrong is said on the way.

A helpdesk's export becomes dialogues and a pool; these are evaluated, built and served; a pool file that changed is
synced; a reply is chosen; and what a person said is erased.
"""

import csv
import json
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import READY, Outcome, ended, start
from foreign import lines

import polyrank

TICKETS = 40
YESTERDAY, TOMORROW = ((datetime.now(UTC) + timedelta(days=days)).date().isoformat() for days in (-1, 1))


class Language(NamedTuple):
    """What is asked and answered there, and what goes around it.

    Attributes:
        asked: questions with their answers; `{n}` is a number of its own in each ticket.
        thanks: what a customer says last.
        close: what the agent says to that.
        note: what is for colleagues alone.
        secret: what tells who somebody is.
        news: replies that come later: one that holds, and one that holds no more.
    """

    asked: list[tuple[str, str]]
    thanks: str
    close: str
    note: str
    secret: str
    news: tuple[str, str]


GERMAN = Language(
    [
        ("Wo bleibt mein Paket mit der Nummer {n}?", "Ihr Paket {n} liegt beim Zusteller und kommt morgen."),
        ("Ich möchte die Lampe zurückgeben.", "Sie können die Lampe innerhalb von 30 Tagen zurückgeben."),
        ("Die Rechnung zu Bestellung {n} fehlt.", "Die Rechnung finden Sie im Kundenkonto unter Bestellungen."),
        ("Kann ich per Lastschrift bezahlen?", "Ja, Lastschrift bieten wir ab der zweiten Bestellung an."),
        ("Liefern Sie nach Österreich?", "Ja, wir liefern auch nach Österreich, Versand 5,90 €."),
        ("Ich habe mein Passwort vergessen.", "Unter „Passwort vergessen“ senden wir Ihnen einen Link."),
        ("Haben Sie am Samstag geöffnet?", "Unser Laden ist am Samstag von 10 bis 16 Uhr geöffnet."),
        ("Mein Gutschein wird nicht angenommen.", "Der Gutschein gilt erst ab 20 € Bestellwert."),
    ],
    "Danke!",
    "Gerne! Einen schönen Tag.",
    "Der Kunde wirkt verärgert.",
    "peter.mueller@example.de",
    ("Heute liefern wir den Adventskalender ohne Versandkosten.", "Im Sommer war der Adventskalender ausverkauft."),
)
JAPANESE = Language(
    [
        ("荷物はいつ届きますか？注文番号は{n}です。", "ご注文{n}の荷物は明日お届けの予定です。"),
        ("ランプを返品したいのですが。", "ランプは商品到着後30日以内であれば返品を承ります。"),
        ("注文{n}の請求書が届いていません。", "請求書はマイページの注文履歴からダウンロードできます。"),
        ("クレジットカードは使えますか？", "はい、各種クレジットカードがご利用いただけます。"),
        ("海外への配送はできますか？", "申し訳ございません、海外への配送は行っておりません。"),
        ("パスワードを忘れました。", "パスワードはログイン画面から再設定できます。"),
        ("土曜日は営業していますか？", "土曜日は10時から16時まで営業しております。"),
        ("クーポンが使えません。", "クーポンは2000円以上のお買い物でご利用いただけます。"),
    ],
    "ありがとうございます。",
    "またのご利用をお待ちしております。",
    "要注意のお客様",
    "taro.yamada@example.jp",
    ("本日は限定カレンダーの送料が無料です。", "夏の間、限定カレンダーは品切れでした。"),
)


def freshdesk(folder: Path) -> list[object]:
    """Freshdesk's export in JSON: mails with signatures and quotes, and a private note; returns how to convert it."""
    tickets = []
    for number in range(TICKETS):
        asked, answered = (each.format(n=10_000 + number) for each in GERMAN.asked[number % len(GERMAN.asked)])
        signed = f"{answered}\n\nMit freundlichen Grüßen\nJana Weiß"
        said = [(signed, False, False), (GERMAN.note, False, True)]
        said += [(f"{GERMAN.thanks}\n\nAm 01.11.2026 um 09:00 schrieb Jana Weiß:\n> {answered}", True, False)]
        said += [(f"{GERMAN.close}\n\nMit freundlichen Grüßen\nJana Weiß", False, False)]
        tickets.append(
            {
                "id": number + 1,
                "requester_id": 500 + number,
                "subject": asked[:20],
                "description_text": f"Guten Tag,\n\n{asked}\n\nViele Grüße\nPeter Müller",
                "conversations": [
                    {"body_text": text, "incoming": comes, "private": hidden, "created_at": f"2026-11-02T0{at}:00:00Z"}
                    for at, (text, comes, hidden) in enumerate(said)
                ][::-1],
            }
        )
    (folder / "tickets.json").write_text(json.dumps(tickets, ensure_ascii=False))
    return [folder / "tickets.json"]


def shift_jis(folder: Path) -> list[object]:
    """A table that no map knows, as a spreadsheet in Japan saves it; the draft of its map is completed."""
    file = folder / "チケット.csv"
    with file.open("w", encoding="cp932", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["チケットID", "日時", "本文", "種別", "公開"])
        for number in range(TICKETS):
            asked, answered = (each.format(n=20_000 + number) for each in JAPANESE.asked[number % len(JAPANESE.asked)])
            said = [(asked, "顧客", "TRUE"), (answered, "担当者", "TRUE"), (JAPANESE.note, "担当者", "FALSE")]
            said += [(JAPANESE.thanks, "顧客", "TRUE"), (JAPANESE.close, "担当者", "TRUE")]
            for at, (text, who, public) in enumerate(said):
                writer.writerow([number + 1, f"2026/11/{number % 28 + 1:02} 10:0{at}", text, who, public])
    refused = run("convert", file, "--output", folder / "none", status=1)
    assert "no map fits it; write one: --draft map.toml begins it" in refused.err
    run("convert", file, "--draft", folder / "map.toml")
    draft = (folder / "map.toml").read_text()
    assert 'answering = ["担当者"]' in draft
    (folder / "map.toml").write_text(draft.replace("# only =", "only ="))
    return [file, "--map", folder / "map.toml"]


def run(*arguments: object, status: int = 0) -> Outcome:
    outcome = ended(start(*arguments))
    assert outcome.status == status, outcome.err
    assert not re.search(r"Traceback|[Ww]arning|\bnan\b|\bNone\b", outcome.err + outcome.out), outcome
    return outcome


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of a server on the store, once that is built."""
    server = start(
        "serve", "--store", tmp_path / "store", "--port", "0", "--feedback", "texts", POLYRANK_DRAIN_DELAY_S="0"
    )
    line = server.stdout.readline()
    assert line.startswith(READY), line + ended(server).err
    yield line.removeprefix(READY).strip()
    server.send_signal(signal.SIGTERM)
    outcome = ended(server)
    assert outcome.status == 0
    assert not re.search("WARNING|ERROR|Traceback", outcome.err), outcome.err


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(params=["german", "japanese"])
def morning(request: pytest.FixtureRequest, tmp_path: Path) -> Language:
    """The export is converted, evaluated and built."""
    language, export, named = {
        "german": (GERMAN, freshdesk, "freshdesk: Freshdesk tickets with conversations, from the API or an export"),
        "japanese": (JAPANESE, shift_jis, "map: what wrote these files"),
    }[request.param]
    out = tmp_path / "out"
    converted = run("convert", *export(tmp_path), "--output", out)
    said = converted.err.splitlines()
    assert said[0] == f"read as {named}"
    assert "; others: 40 messages" in converted.err or "; others: 80 messages" in converted.err
    assert f"passed over {TICKETS} messages that are none, as the map says (only)" in said
    assert converted.out.splitlines()[0] == f"{out / 'dialogues.jsonl'}: {2 * TICKETS} examples"

    dialogues = rows(out / "dialogues.jsonl")
    first, second = dialogues[:2]
    number = 10_000 if language is GERMAN else 20_000
    assert [turn["content"].partition("\n\n")[2] or turn["content"] for turn in first["context"]] == [
        language.asked[0][0].format(n=number)
    ]
    assert first["response"] == language.asked[0][1].format(n=number)
    assert [turn["role"] for turn in second["context"]] == ["user", "assistant", "user"]
    assert (second["context"][-1]["content"], second["response"]) == (language.thanks, language.close)
    replies = {row["text"] for row in rows(out / "pool.jsonl")}
    numbers = range(number, number + TICKETS, len(language.asked))
    assert replies == {answer.format(n=n) for _, answer in language.asked for n in numbers} | {language.close}

    measured = run("evaluate", "--model", "lexical", "--data", out / "dialogues.jsonl", "--pool", out / "pool.jsonl")
    assert f"examples    {2 * TICKETS}" in measured.out
    assert f"candidates  {len(replies)}" in measured.out
    built = run("build", "--model", "lexical", "--pool", out / "pool.jsonl", "--store", tmp_path / "store")
    assert re.fullmatch(rf"generation \S+ is active: {len(replies)} candidates in .*\n", built.out)
    return language


def test_a_first_morning(morning: Language, served: str, tmp_path: Path) -> None:
    pool = rows(tmp_path / "out" / "pool.jsonl")
    with polyrank.Client(served) as client:
        for question, answer in morning.asked:
            asked = question.format(n=10_000 if morning is GERMAN else 20_000)
            ranked = client.rank(asked, top_k=3, conversation="ticket 7")
            assert answer.format(n=10_000 if morning is GERMAN else 20_000) in [each.text for each in ranked.results]
            assert not ranked.notes

        holds, held = (
            {"text": text, "from": day} for text, day in zip(morning.news, (YESTERDAY, TOMORROW), strict=True)
        )
        (tmp_path / "new.jsonl").write_text(lines([*pool[1:], holds, held]))
        sync = ["candidates", "sync", tmp_path / "new.jsonl", "--url", served]
        counts = f"2 added, 0 changed, 1 deleted, {len(pool) - 1} unchanged"
        assert run(*sync, "--dry-run").out.splitlines()[-1] == f"a dry run, nothing was changed; it would be: {counts}"
        assert run(*sync).out.splitlines()[-1].startswith(f"{counts}; revision ")
        begun = client.rank(morning.news[0], top_k=5, filter={"from": {"lte": "now"}})
        assert [each.text for each in begun.results] == [morning.news[0]]
        assert pool[0]["id"] not in [each.id for each in client.rank(pool[0]["text"], top_k=100).results]

        ranked = client.rank(f"{morning.asked[1][0]} {morning.secret}", top_k=3, conversation="ticket 8")
        chosen = client.feedback(ranked.ranking_id, "chosen", id=ranked.results[0].id)
        assert (chosen.accepted, chosen.unknown) == (1, 0)
        wrong = client.feedback(ranked.ranking_id, "chosen", id="no such reply")
        assert (wrong.accepted, wrong.unknown) == (0, 1)

    store = tmp_path / "store"
    status = run("feedback", "status", "--store", store, "--json").result
    assert (status["rankings"], status["with_feedback"]) == (len(morning.asked) + 3, 1)
    run("feedback", "export", "--store", store, "--output", tmp_path / "export")
    [learnt] = rows(tmp_path / "export" / "train.jsonl")
    assert learnt["response"] == ranked.results[0].text
    assert morning.secret not in json.dumps(learnt, ensure_ascii=False)

    erased = run("feedback", "erase", "--store", store, "--conversation", "ticket 8", "--conversation", "ticket 9")
    assert erased.out.startswith("erased: 1 rankings and their events\nnothing is recorded of 'ticket 9'; ")
    assert run("feedback", "status", "--store", store, "--json").result["rankings"] == len(morning.asked) + 2
