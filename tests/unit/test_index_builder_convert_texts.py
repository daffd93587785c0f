"""What a message says."""

import time

import pytest

from polyrank.index_builder.convert.texts import message_text, read


@pytest.mark.parametrize(("value", "text"), [
    ("a", "a"),
    (None, ""),
    (5, "5"),
    (True, ""),
    (
        [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "u"}},
            {"type": "x", "content": "b"},
        ],
        "a\nb",
    ),
    (["a ", {"type": "bold", "text": "b"}, None, "."], "a b."),
    ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
    ([[[[[["deep"]]]]]], "deep"),
    ({"other": "x"}, ""),
])  # fmt: skip
def test_all_parts_are_read(value: object, text: str) -> None:
    assert message_text(value) == text


@pytest.mark.parametrize(("text", "form", "found"), [
    ("<p>Hi <b>you</b>,</p><p>a<br>b &amp; c</p><script>x()</script>", "html", "Hi you,\n\na\nb & c"),
    ("line\nby line &lt;b&gt;", "html", "line\nby line <b>"),
    ("a < b and b > c", "html", "a < b and b > c"),
    ("R&uuml;ckgabe &#38; Co", "entities", "Rückgabe & Co"),
    ("<@U1> see <https://x.example|here> &gt;", "slack", "see here >"),
    ("a < b and b > c", "entities", "a < b and b > c"),
    ("R&uuml;ckgabe <p>", "plain", "R&uuml;ckgabe <p>"),
    ("<div>" * 5000 + "x", "html", ""),
])  # fmt: skip
def test_html_and_entities(text: str, form: str, found: str) -> None:
    assert read(text, form, keep_quotes=True) == found


@pytest.mark.parametrize(("mail", "kept"), [
    ("It left.\n\nOn Mon, Jan 5, 2026 at 3:04 PM Anna <a@x.example> wrote:\n> Where?\n> Bye", "It left."),
    ("Unterwegs.\n\nAm 05.01.2026 um 15:04 schrieb Anna <a@x.example>:\n> Wo?", "Unterwegs."),
    ("発送しました。\n\n2026年1月5日(月) 15:04 Anna <a@x.example>:\n> どこ？", "発送しました。"),
    ("It left.\r\n\r\nVon: A\r\nGesendet: B\r\nAn: C\r\nBetreff: D\r\n\r\nalt", "It left."),
    ("Please reset it.\n\nBest regards,\nAnna\nShop", "Please reset it."),
    ("Hello\n--\nBen\n", "Hello"),
    ("It left.\n\nViele Grüße aus Berlin\nAnna", "It left."),
    ("It left.\n\nGet Outlook for iOS<https://aka.ms/o0ukef>", "It left."),
    ("Step 1\n- do a\n- do b\nIt works!", "Step 1\n- do a\n- do b\nIt works!"),
    (
        "<p>It left.</p><p>On Fri, Jan 2, 2026 at 10:05 AM Shop &lt;s@x.example&gt; wrote:<br>&gt; Where?</p>",
        "It left.",
    ),
    ("It left.\n\nDe: A\nEnviado el: B\nPara: C\nAsunto: D\n\nviejo", "It left."),
    ("It left.\n\nDe: A\nEnviado: B\nPara: C\nAssunto: D\n\nvelho", "It left."),
    (f"It left.\n\nFrom: A\nSent: B\nTo: {'c@x.example; ' * 20}\nSubject: D\n\nold", "It left."),
    ("It left.\n\nFrom: A\nSent: B\nTo: C\nSubject: D\n\nHi\n> old\n\nmore that is old.", "It left."),
    ("It left.\n\nOn 5 Jan 2026 A wrote:\n> Where?\n\nSent from my iPhone", "It left."),
    (f"It left.\n\nBest regards\nAnna\nShop GmbH | Street 1 | 10115 Berlin | {'Tel. 030 ' * 9}", "It left."),
    ("Salió.\n\nEl lun, 5 ene 2026 a las 15:04, Anna (<a@x.example>) escribió:\n\n> ¿Dónde?", "Salió."),
    ("Salió.\n\nEl lun, 5 ene 2026 a las 15:04, Anna Lopez Garcia (<\na@x.example>) escribió:\n\n> Sí", "Salió."),
    ("Salió.\n\nEl 5/1/26 a las 15:04, Anna escribió:\n> ¿Dónde?", "Salió."),
    ("Weg.\n\nOp ma 5 jan 2026 om 15:04 schreef Anna <a@x.example>:\n\n> Waar?", "Weg."),
    ("Weg.\n\nOp 5-1-2026 om 15:04 schreef Anna:\n> Waar?", "Weg."),
    ("Jest.\n\npon., 5 sty 2026 o 15:04 Anna <a@x.example> napisał(a):\n\n> Gdzie?", "Jest."),
    ("Jest.\n\nW dniu 5.01.2026 o 15:04, Anna pisze:\n> Gdzie?", "Jest."),
    ("Saiu.\n\nEm seg., 5 de jan. de 2026 às 15:04, Anna <a@x.example> escreveu:\n\n> Onde?", "Saiu."),
    ("已发货。\n\nAnna <a@x.example> 于2026年1月5日周一 15:04写道：\n\n> 在哪里？", "已发货。"),
    ("Sendt.\n\nDen man. 5. jan. 2026 kl. 15.04 skrev Anna <a@x.example>:\n\n> Hvor?", "Sendt."),
    ("Lähti.\n\nma 5. tammik. 2026 klo 15.04 Anna (a@x.example) <a@x.example> kirjoitti:\n\n> Missä?", "Lähti."),
    ("> only quoted", "> only quoted"),
    ("Thanks,\n" + "\n".join(f"step {n}" for n in range(20)), "Thanks,\n" + "\n".join(f"step {n}" for n in range(20))),
    ("  indented\n\n\n\n\nlast", "indented\n\n\n\n\nlast"),
])  # fmt: skip
def test_what_a_mail_quotes_and_its_signature_are_cut(mail: str, kept: str) -> None:
    assert read(mail, "mail", keep_quotes=False) == kept
    assert "Where" in read("a\n\nOn 1.1.2026 B wrote:\n> Where?", "mail", keep_quotes=True)


HEAD = "On Fri, Jan 2, 2026 at 10:01 AM Shop <s@x.example> wrote:\n> It left.\n"


@pytest.mark.parametrize("mail", [
    "Hello Max,\n\nThank you, we have received your parcel. We refund it.\nYou will get it on Monday.",
    "Hi Anna,\nThanks, but where is my second parcel?",
    "Hello,\n\nThanks,\n\nplease tell us:\n1. when\n2. where",
    "To return it:\nTake a photo of the label.\nSend it.",  # Danish signatures begin with Tak
    "We are here:\nMo: 9-17\nDo: 9-12\nFr: 9-12",  # in Polish to whom a mail is
    "A message:\n\nFrom: Max <m@x.example>\nSubject: Parcel\n\nMessage:\nWhere is my parcel?",
    "Our colleague asks.\n\nOn the phone you wrote:\nno, you said it.",
    f"{HEAD}\nThanks, got it.\nAnd the other one?",
    f"Hello,\n\n{HEAD}\nTomorrow.\n\n> And the price?\n5 Euro.",
    f"One.\n\n{'-' * 40}\nTwo.\nThree.\nFour.",
    "Hi,\n\nWrite to Anna <a@x.example> by 31.12.2026, 15:00, or call.\nShe needs:\nyour number",
    "Hi Ben,\n\nFor order 5519 (12.50 EUR) write to Anna <a@x.example> and send:\n- your name",
    "Hi Ben,\n\nYour parcel left on 5.01.2026.\nWrite to <help@x.example> with:\n- your name",
    "Hola,\n\nEl cliente 5519 escribió a la tienda:\nno llega nada.\nEs todo.",
    "Hallo,\n\nDen 5519 sendte vi, men han skrev:\nfarve: blå\nStørrelse M",
    "Press <Enter> or write <your name>, if 3 < 5",
    f"Hi Anna,\n\nThanks, got it.\n\n{'and the other one, ' * 9}too",
    "Hi,\n\nThanks, Anna.\n\nPlease refund me.",
    "Hola,\nGracias, Ana.\n\nPedido 5519\n\n¿Dónde está?",
    "It left.\n\nBest regards\nAnna\n\nPS: The label is in the box.",
    "Salió.\n\nUn saludo,\nAna\n\nP.D. La etiqueta va dentro.",
    "Hello,\n\nThanks,\n- size M\n- red",
    "Hello,\n\nOn 5 Jan 2026 A wrote:\n> Where?\nIt left on Monday.",
    "Type:\n/help\nin the chat",
    "\n".join([*(f"line {number}" for number in range(199)), "---", "the rest"]),
])  # fmt: skip
def test_what_a_person_says_is_not_cut(mail: str) -> None:
    assert read(mail, "mail", keep_quotes=False) == mail


@pytest.mark.slow
@pytest.mark.parametrize("bad", [
    "\n" * 50_000 + "x", "On " * 20_000, "Am 1.1.2026 schrieb " * 5000,
    ("On " * 50 + "\n") * 500, "> " * 20_000, ("Sent from my " + "a " * 70 + "\n") * 199, ("wrote " * 26 + "\n") * 500,
])  # fmt: skip
def test_a_mail_that_is_made_to_be_slow_takes_bounded_time(bad: str) -> None:
    began = time.process_time()
    read(bad, "mail", keep_quotes=False)
    assert time.process_time() - began < 10
