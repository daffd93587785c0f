"""Which texts say the same in almost the same words."""

from collections import Counter

import numpy as np
import pytest

from polyrank.service.ranking import near_equal
from polyrank.service.ranking.near_equal import Distinct

LONG = "we send your parcel on monday and you get it at home with a note about the shop"
GERMAN = "Sie erhalten Ihr Geld innerhalb einer Woche auf das Konto zurück, von dem es kam, wenn die Ware heil ist."
JAPANESE = "お届けした商品は到着してから七日以内に未開封のままお送りいただければ送料当社負担で返品できます"


def is_near(one: str, other: str) -> bool:
    there, back = Distinct(), Distinct()
    assert there.admit(one)
    assert back.admit(other)
    found = not there.admit(other)
    assert back.admit(one) is not found
    return found


@pytest.mark.parametrize(("one", "other"), [
    ("Thank you!", "thank  YOU"), (LONG, f"{LONG} again"),
    (LONG, f"Hi, {LONG.replace('note', 'short note')}"), (f"Hello, {LONG}", f"{LONG} Thanks!"),
    ("!!", "!!"), ("\u8a02\u55ae\u5230\u4e86", "\u8a02\u55ae\u5230\u4e86\u3002"), ("", ""),
    (GERMAN, f"Guten Tag! {GERMAN.upper()}"), (JAPANESE, JAPANESE + "ね"),
])  # fmt: skip
def test_a_few_words_more_make_no_other_text(one: str, other: str) -> None:
    assert is_near(one, other)


@pytest.mark.parametrize(("one", "other"), [
    (LONG, LONG.replace("monday", "friday")),
    (LONG, f"{LONG} again and again"),
    ("we ship abroad", "we do not ship abroad"),
    (f"{LONG} {LONG} in 5 days", f"{LONG} {LONG} in 14 days"),
    ("!!", "??"),
    ("a a a b", "a b"),
    # one word for another, however long the text
    (f"{LONG} {LONG}", f"{LONG} {LONG.replace('monday', 'friday')}"),
    (f"{LONG} {LONG}", f"{LONG.replace('get', 'pay')} {LONG}"),
    # a negation, a limit, a condition
    (f"{LONG} {LONG}", f"{LONG} {LONG.replace('get', 'never get')}"),
    (f"{LONG} {LONG}", f"{LONG} {LONG.replace('you get', 'you don’t get')}"),
    (f"{LONG} for less than ten euros", f"{LONG} for more than ten euros"),
    (f"{LONG} for ten euros", f"{LONG} for over ten euros"),
    (LONG, LONG.replace("and", "and only")),
    (GERMAN, GERMAN.replace("Sie erhalten", "Sie erhalten nicht")),
    (f"{GERMAN} Porto trägt der Kunde ab zehn Euro.", f"{GERMAN} Porto trägt der Kunde bis zehn Euro."),
    (GERMAN, GERMAN.replace("heil", "nur heil")),
    (
        f"Il est possible que {'la livraison ' * 9}arrive demain",
        f"Il n'est pas possible que {'la livraison ' * 9}arrive",
    ),
    # the order of words, and of numbers
    (f"{LONG} from Oslo to Bergen", f"{LONG} from Bergen to Oslo"),
    (f"{LONG} within 3 to 5 days", f"{LONG} within 5 to 3 days"),
    (JAPANESE, JAPANESE.replace("できます", "できません")),
    (JAPANESE, JAPANESE.replace("以内", "以降")),
    (JAPANESE, JAPANESE.replace("で返品", "まで返品")),
    (JAPANESE, JAPANESE.replace("七日", "八日")),
])  # fmt: skip
def test_what_may_change_the_sense_makes_another_text(one: str, other: str) -> None:
    assert not is_near(one, other)


def test_the_texts_taken_in_are_those_of_comparing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_equal, "MOST_COMPARED", 400)
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(["aa", "bb", "cc", "hi", "x1"], rng.integers(1, 24))) for _ in range(200)]
    for text in texts[:200]:  # some words more here and there
        several = text.split()
        for _ in range(rng.integers(0, 3)):
            several.insert(rng.integers(0, len(several) + 1), f"{rng.choice(['w', 'not', 'y2'])}")
        texts.append(" ".join(several))
    taken: list[list[str]] = []
    distinct = Distinct()
    for text in texts:
        own = text.split()
        assert distinct.admit(text) is (not any(says_the_same(own, each) for each in taken)), text
        if not any(says_the_same(own, each) for each in taken):
            taken.append(own)
    assert 100 < len(taken) < 380


def says_the_same(one: list[str], other: list[str]) -> bool:
    """Whether both have most words in one order, and the others stand alone and do not count."""
    both, either = Counter(one) & Counter(other), Counter(one) | Counter(other)
    if both.total() < 0.9 * either.total() or any(both[each] != either[each] for each in ("x1", "y2", "not")):
        return False
    kept = [[word for at, word in enumerate(text) if text[: at + 1].count(word) <= both[word]] for text in (one, other)]
    if kept[0] != kept[1]:
        return False
    gaps = [[""], [""]]
    for text, found in zip((one, other), gaps, strict=True):
        for at, word in enumerate(text):
            if text[: at + 1].count(word) <= both[word]:
                found.append("")
            else:
                found[-1] += word
    return not any(first and second for first, second in zip(*gaps, strict=True))


def test_very_many_texts_that_differ_in_a_name_take_little_time() -> None:
    distinct = Distinct()
    texts = [f"Hello {chr(97 + n % 26)}{chr(97 + n // 26 % 26)}nna, {LONG} {LONG} {LONG}" for n in range(600)]
    assert all(map(distinct.admit, texts))
