"""What a log of feedback takes out of texts: with other scripts, other spellings, and texts made to be slow."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.service.errors import SettingsError
from polyrank.service.feedback import redaction
from polyrank.service.feedback.redaction import (
    MOST_CHARACTERS,
    REPLY_CHARACTERS,
    Redaction,
    RedactionFailed,
    named,
    redacted,
)

IBANS = (
    *("DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "gb29nwbk60161331926819", "NO93 8601 1117 947"),
    *("FR14 2004 1010 0505 0001 3M02 606", "MT84MALT011000012345MTLCAST001S", "NL91-ABNA\xa00417\xa01643\xa000"),
)

# Characters that nobody sees, and signs that lie over others.
UNSEEN = [*"\u0332\u0336\u034f\ufe00\ufe0f\u180e\u2800\u200b\u2063\u20dd\u061c\u00ad\u115f\U000e0031\U000e01ef"]


@pytest.mark.parametrize(("text", "left"), [
    ("write to jo.doe+x@mail.example, please", "write to [mail], please"),
    ("<jo@x.example> said", "<[mail]> said"),
    ("我的邮箱 用户@例子.广告 谢谢", "我的邮箱 [mail] 谢谢"),
    ("メールは、taro@example.jp、です。送料は?", "メールは、[mail]、です。送料は?"),
    ("「jo@x.example」と書いた。届きません", "「[mail]」と書いた。届きません"),
    ("https://x.example/a?name=太郎。届きません", "https://x.example/a[query]。届きません"),
    ("https://x.example/?q=山田、太郎&token=abc です", "https://x.example/[query] です"),
    ("x.example/a?b=1、届きません x.example?4f9a8b7c。はい", "x.example/a[query]、届きません x.example[query]。はい"),
    ("jo＠x.example", "[mail]"),
    ("jo%40x.example", "[mail]"),
    ('"john doe"@x.example, "j\\"d"@x.example', "[mail], [mail]"),
    ("o'neil d'o'brien@x.example 'jo@x.example'", "o'neil [mail] '[mail]'"),
    ("<jo@[1.2.3.4]> jo@[IPv6:2001:db8::1]", "<[mail]> [mail]"),
    ("https://jo:pa@ss@x.example:80/a?b", "https://[user]@x.example:80/a[query]"),
    ("redis://:pa/s?s#w@x.example and ftp://jo@x.example.", "redis://[user]@x.example and ftp://[user]@x.example."),
    ("http://x.example:8080/@jo", "http://x.example:[mail]"),
    ("https://x.example/a;b/c;jsessionid=1A;x?y=z.", "https://x.example/a;b/c[query]"),
    ("x.example/a;PHPSESSID=1A2B", "x.example/a[query]"),
    (
        'She said "no" @ 5; let x=3;y=4, see https://x.example/a;',
        'She said "no" @ 5; let x=3;y=4, see https://x.example/a;',
    ),
    ("see https://x.example/a/b?token=abc&user=jo now", "see https://x.example/a/b[query] now"),
    ("see HTTPS://X.example/?abc", "see HTTPS://X.example/[query]"),
    ("Www.x.example/#access_token=abc.", "Www.x.example/[query]"),
    ("x.example/reset?token=abc", "x.example/reset[query]"),
    ("read https://x.example/help", "read https://x.example/help"),
    ("card 4111 1111 1111 1111!", "card [number]!"),
    ("card 4111-1111-1111-1111", "card [number]"),
    ("card 4111\u20131111\u00a01111\n1111", "card [number]"),
    ("call +49 (0)30 12.34.56", "call +[number]"),
    ("رقم ٤١١١ ١١١١ ١١١١ ١١١١", "رقم [number]"),
    ("नंबर ९८७६५४३२१०", "नंबर [number]"),
    ("１２３４５６ ok", "[number] ok"),
    ("𝟏𝟐𝟑𝟒𝟓𝟔 and ①②③④⑤⑥ and ¹²³⁴⁵⁶", "[number] and [number] and [number]"),
    ("1️⃣2️⃣3️⃣4️⃣5️⃣6️⃣", "[number]"),
    ("一三八〇〇一三八〇〇〇", "[number]"),
    ("０９０－１２３４－５６７８か（０３）１２３４ー５６７８", "[number]か（[number]"),
    ("\u202a+49 171\u202c \u206612\u206934", "\u202a+[number]"),
    ("12345 and 1-2-3", "12345 and 1-2-3"),
    ("Come by 30 hours not because and the the it the want", "Come by 30 hours not because and the the it the want"),
    ("an inner diameter of 17 mm, which makes it a size 54.", "an inner diameter of 17 mm, which makes it a size 54."),
    ("Really?yes # is it 5 o'clock?", "Really?yes # is it 5 o'clock?"),
    ("@alice, do you have 3 of M2x4 at 20 %?", "@alice, do you have 3 of M2x4 at 20 %?"),
    ("MX20 is the best of all of them there", "MX20 is the best of all of them there"),
    *((f"to {iban} please", "to [iban] please") for iban in IBANS),
    *((f"4111{sign}1111{sign}1111", "[number]") for sign in UNSEEN),
    *((f"d 4111{parted}1111{parted}1111 d", "d [number] d") for parted in ("*", " | ", ":", "====", " ☎️ ", "\u3164")),
    ("壹贰叁肆伍陆 a 〡〢〣〤〥〦 a ⑴⑵⑶⑷⑸⑹ a ⓵⓶⓷⓸⓹⓺ a 🯱🯲🯳🯴🯵🯶", " a ".join(["[number]"] * 5)),
    ("&#52;&#x31;11&nbsp;1111 %34%31%31%31%20%31%31", "[number]"),
    ("IBAN ＤＥ８９ ３７０４ ００４４ ０５３２ ０１３０ ００", "IBAN [iban]"),
    ("<jo>@x.example or jo@<x.example> or (jo) @ x.example", "<[mail] or [mail]> or ([mail]"),
    ("jo\u00a0@\u202fx.example", "[mail]"),
    ("jo @ x.example, but she is @ 5.30, @alice", "[mail], but she is @ 5.30, @alice"),
    ("jo&#64;x.example jo&#x40;x.example jo&commat;x.example", "[mail] [mail] [mail]"),
    ("jo%2540x.example jo&amp;#64;x.example jo%26%2364%3Bx.example", "[mail] [mail] [mail]"),
    ("jo (at) x [dot] example; meet (at) noon", "[mail]; meet (at) noon"),
    ("j\u200bo@x\u00ad.exam\u0332ple", "[mail]"),
    ("x.example/reset?token and x.example?4f9a8b7c", "x.example/reset[query] and x.example[query]"),
    ("Done.Really?yes.no 100%20 Q&A; and/or?no", "Done.Really?yes.no 100%20 Q&A; and/or?no"),
    ("Grüße ﷺ é\u0301 ½ &eacute; %C3%A9 jo@x.example ½ später", "Grüße ﷺ é\u0301 ½ &eacute; %C3%A9 [mail] ½ später"),
])  # fmt: skip
def test_what_tells_who_somebody_is_goes(text: str, left: str) -> None:
    assert redacted(text) == left


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["١", "7", "９", "३", "𝟕"]), min_size=6, max_size=24), st.data())
def test_no_run_of_six_digits_is_left_however_it_is_parted(digits: list[str], data: st.DataObject) -> None:
    between = st.sampled_from(
        [
            *["", " ", "-", " - ", "\u2011", "\u00a0", ".", "/", ") ", "－", "ー", "・", "|", ":", "&nbsp;", "%20"],
            *UNSEEN,
        ]
    )
    written = "".join(digit + data.draw(between) for digit in digits[1:]) + digits[0]
    assert not any(letter.isdigit() for letter in redacted(f"it is {written} ok"))


HOSTILE = st.lists(
    st.sampled_from(
        [
            *"ab1 ٣@.?#=:/w-é\"';[]()<>&%。", "&#64;", "&#4", "%40",
            "%2540", "%C3%A9", "(at)", "½", "ﷺ", "⒈", "\ud800", *UNSEEN,
        ]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@settings(max_examples=100)
@given(HOSTILE)
def test_each_letter_of_the_copy_has_its_place_in_the_text(text: str) -> None:
    places = redaction._places(text)
    assert len(places) == len(redaction._copied(text)) + 1
    assert places == sorted(places)
    assert places[-1] == len(text)


@settings(max_examples=100)
@given(HOSTILE)
def test_what_was_redacted_holds_nothing_more_to_redact(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


SLOW = """a|1|1 |://|?|?a|#=|@|a@|www.|AB12|AB1 |12345x|1    |aa1 aa1 |😀|%40|1---|"|"a|"\\|a'|://a:|://;|;a|;sess\
|&|&#6|&#64;|%|%2540|(|(at)|( at|a.|a.a?|a.b/|a.b/,|.b?c| @|a @|a> @|a@b.|\u0332|1\u0332|1     |ﷺ|½|一|é"""


@pytest.mark.parametrize("unit", SLOW.split("|"))
def test_no_text_takes_long(unit: str) -> None:
    """A pattern that goes back would take the square: 2,500 times as long for 50 times the text."""

    def seconds(characters: int) -> float:
        text = (unit * characters)[:characters] + " @;=9"  # so that every pattern is tried
        began = time.thread_time()
        redacted(text)
        return time.thread_time() - began

    assert seconds(100_000) < 200 * max(min(seconds(2_000) for _ in range(3)), 0.0002)


def test_only_so_much_of_a_text_is_kept() -> None:
    made, text = Redaction(), "ab " * 20_000
    assert made.beginning(text) == text[:REPLY_CHARACTERS]
    assert made.end(text) == text[-MOST_CHARACTERS:]
    for most in (REPLY_CHARACTERS, MOST_CHARACTERS):
        number = "x" * (most - 9) + " 4111 1111 1111 1111 " + "y" * (most - 9)
        assert "11" not in made.beginning(number) + made.end(number)


@pytest.mark.parametrize("secret", ["4111 1111 1111 1111", "jo.smith@secret.example", "https://jo:pass@x.example/"])
def test_what_lies_across_the_end_of_what_is_read_is_not_kept_in_part(secret: str) -> None:
    """Little is left of most of the text, so that its last letters are recorded."""
    made, words = Redaction(), " ".join(["word"] * 60)
    for inside in range(1, len(secret), 6):
        before = "7" * (2 * REPLY_CHARACTERS - len(words) - inside - 2)
        kept = made.beginning(f"{before} {words} {secret} {words}")
        assert kept == f"[number] {words}"[: len(kept)]
        assert len(kept) > 100
        after = "7" * (2 * MOST_CHARACTERS - len(words) - inside - 2)
        kept = made.end(f"{words} {secret} {words} {after}")
        assert kept == f"{words} [number]"[-len(kept) :]
        assert len(kept) > 100


def test_a_function_of_the_operator_comes_after() -> None:
    made = Redaction(lambda text: text.replace("Jo", "[name]"))
    assert made.end("Jo, jo@x.example") == "[name], [mail]"
    assert made.beginning("nothing") == "nothing"


@pytest.mark.parametrize("broken", [int, str.encode, lambda text: None], ids=["raises", "bytes", "None"])
def test_a_function_that_fails_lets_no_text_through(broken: Callable[[str], object]) -> None:
    with pytest.raises(RedactionFailed, match="it r") as caught:
        Redaction(broken).end("a secret")
    assert "secret" not in str(caught.value)


def test_a_function_is_found_by_its_name() -> None:
    assert named("builtins:str")("a") == "a"
    for wrong in ("", "no_such_package:f", "builtins:nothing", "builtins:len", "builtins", "../x:y"):
        with pytest.raises(SettingsError, match=r"^feedback_redact: "):
            named(wrong)
