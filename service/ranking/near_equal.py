"""Whether two texts say the same in almost the same words.

They do if one has a few words more, where the other has none, and these turn nothing round. Any other word, or another
order, may change what is said: `monday` or `friday`, `from Oslo to Bergen` or `from Bergen to Oslo`. Which words turn a
sense round, so that one of them more is no small thing, is a list of common languages; a word in place of another is
never a small thing, in any language.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import regex

from polyrank.model.lexical.words import normalised, words

# Texts are near-equal if so large a share of the words that either has are in both.
NEAR = 0.9
COMPARED_LETTERS = 1000  # of a text, its first ones
MOST_COMPARED = 30  # with so many of the texts before it that begin alike

# Negations, limits, conditions and exceptions. Of languages whose verbs are negated by an ending, another verb tells.
_TURNING = frozenset(
    words("""
    no not never none nor neither nobody nothing nowhere cannot without don't can't won't isn't aren't wasn't weren't
    doesn't didn't hasn't haven't hadn't shouldn't wouldn't couldn't mustn't needn't ain't hardly barely almost nearly
    only except unless but if until before after from up over under above below more less fewer least most max min
    maximum minimum about half twice every other another old new old former formerly free first last temporarily
    nicht kein keine keinen keinem keiner keines nie niemals niemand nichts nirgends ohne weder noch nur ausser bis ab
    vor nach über unter mehr weniger mindestens höchstens maximal minimal fast kaum falls wenn sofern halb jede jeder
    ne n pas jamais sans ni aucun aucune rien personne plus moins sauf seulement que avant après jusque jusqu dès depuis
    si au-dessus au-dessous dessous dessus minimum presque guère
    nunca jamás sin ningún ninguna ninguno nada nadie tampoco sólo solo salvo excepto más menos antes después hasta
    desde si máximo mínimo casi apenas
    non mai senza nessun nessuna nessuno niente nulla né solo soltanto tranne eccetto più meno prima dopo fino entro
    almeno massimo minimo quasi
    não nem nunca sem nenhum nenhuma ninguém só somente exceto mais menos antes depois até desde se máximo mínimo quase
    niet geen nooit niemand niets zonder noch alleen behalve tenzij meer minder minstens hoogstens voor na tot vanaf als
    nie bez nigdy nikt nic żaden ani tylko oprócz chyba więcej mniej przed po do od jeśli powyżej poniżej
    ne není nejsou nikdy nikdo nic bez žádný ani jen pouze kromě více méně před po do od pokud
    inte aldrig ingen inget inga utan bara endast utom mer mindre minst högst före efter till från om
    ikke aldri aldrig ingen intet intet uten uden bare kun unntatt undtagen mer mere mindre minst mindst før etter efter
    ei en et emme ette eivät älä ilman vain paitsi enemmän vähemmän ennen jälkeen vähintään enintään jos
    nem sem soha nincs nélkül csak kivéve több kevesebb előtt után legalább legfeljebb ha
    değil yok hiç asla olmadan sadece yalnızca hariç fazla az önce sonra kadar en eğer
    nu nici niciodată fără doar numai exceptând mai puțin înainte după până dacă
    не ни нет никогда никто ничего без только кроме больше меньше более менее до после от свыше если почти
    не ні немає ніколи без тільки лише крім більше менше до після від якщо
    δεν μη μην όχι ποτέ χωρίς μόνο εκτός περισσότερο λιγότερο πριν μετά έως αν
    לא אין בלי רק חוץ יותר פחות לפני אחרי עד אם אל
    لا لم لن ليس ليست غير بدون دون فقط إلا أكثر أقل قبل بعد حتى إذا ما
    نه نیست بدون فقط جز بیشتر کمتر قبل بعد تا اگر
    नहीं न मत बिना केवल सिर्फ अलावा अधिक कम पहले बाद तक अगर
    không chưa chẳng đừng chỉ trừ hơn ít trước sau đến từ nếu
    tidak bukan belum jangan tanpa hanya kecuali lebih kurang sebelum sesudah setelah sampai jika
    안 못 않 없이 만 제외 이상 이하 이전 이후 까지 부터
    """)  # noqa: RUF001  # letters of other scripts that look like Latin ones
)
# Pieces of scripts without spaces that do so: Chinese, Japanese, Thai.
_TURNING_PIECE = regex.compile(
    r"\L<pieces>",
    pieces=[
        *"不没沒无無未非勿莫否别別仅僅只除超以前后後内內外至満限",
        *("ない", "なし", "なく", "ません", "ぬ", "まで", "から", "だけ", "のみ", "しか", "より"),
        *("ไม่", "ไม่มี", "ห้าม", "เฉพาะ", "เท่านั้น", "ยกเว้น", "ก่อน", "หลัง", "ถึง", "ถ้า", "มากกว่า", "น้อยกว่า"),
    ],
)
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{LB=SA}]"
_PIECE = regex.compile(rf"{_UNSPACED}\p{{M}}*|[^\s{_UNSPACED[1:-1]}]+")

_Word = tuple[str, int]  # of a text, and how often it was there before


class _Text(NamedTuple):
    words: frozenset[_Word]
    order: tuple[_Word, ...]  # of words, and of the letters of scripts without spaces


class Distinct:
    """Takes texts in unless one before is near-equal.

    Of the words that either has, `NEAR` or more are in both, in one order; a word counts as often as it is there. The
    others stand where the other text has none, and are neither numbers, nor names with digits, nor words that turn a
    sense round. Compared are the first `COMPARED_LETTERS` letters of each text, without case and punctuation.
    """

    def __init__(self) -> None:
        self._before: dict[object, list[_Text]] = {}

    def admit(self, text: str) -> bool:
        """Take a text in; returns whether it is not near-equal to one before."""
        whole = normalised(text[:COMPARED_LETTERS])
        own = _Text(
            frozenset(_counted(words(text[:COMPARED_LETTERS]) or [whole])), tuple(_counted(_PIECE.findall(whole)))
        )
        decisive = frozenset(each for each in own.words if each[0] in _TURNING or any(map(str.isdigit, each[0])))
        # Near-equal texts share one of their first words in any fixed order; long words are rare.
        count = len(own.words)
        first = sorted(own.words, key=lambda each: (-len(each[0]), each))[: count - math.ceil(NEAR * count) + 1]
        alike = [self._before.setdefault((decisive, each), []) for each in first]
        for other in {other for others in alike for other in others[-MOST_COMPARED:]}:
            if _shares_enough(own.words, other.words) and _says_the_same(own.order, other.order):
                return False
        for others in alike:
            others.append(own)
        return True


def _counted(pieces: Sequence[str]) -> Iterator[_Word]:
    occurrences: dict[str, count[int]] = {}
    return ((word, next(occurrences.setdefault(word, count()))) for word in pieces)


def _shares_enough(own: frozenset[_Word], other: frozenset[_Word]) -> bool:
    shorter, longer = sorted((len(own), len(other)))
    return shorter >= NEAR * longer and (shared := len(own & other)) >= NEAR * (shorter + longer - shared)


def _says_the_same(own: Sequence[_Word], other: Sequence[_Word]) -> bool:
    """Whether all that one text has more stands where the other has none, and turns nothing round."""
    more, less = {*own}.difference(other), {*other}.difference(own)
    at, beside = 0, 0
    while at < len(own) or beside < len(other):
        one, two = _run(own, at, more), _run(other, beside, less)
        if (one and two) or not _TURNING.isdisjoint(one + two) or _TURNING_PIECE.search("".join(one + two)):
            return False
        at, beside = at + len(one), beside + len(two)
        if own[at : at + 1] != other[beside : beside + 1]:
            return False
        at, beside = at + 1, beside + 1
    return True


def _run(text: Sequence[_Word], at: int, others: set[_Word]) -> list[str]:
    end = at
    while end < len(text) and text[end] in others:
        end += 1
    return [word for word, _ in text[at:end]]
