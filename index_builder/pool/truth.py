"""What stands for true and false in tables: as spreadsheets of many languages write it, and as people do."""

from collections.abc import Collection

from polyrank.model.text.folding import folded_line

_PAIRS = """
true false, wahr falsch, vrai faux, verdadero falso, vero falso, verdadeiro falso, waar onwaar, prawda fałsz,
истина ложь, sant falskt, sand falsk, sann usann, tosi epätosi, pravda nepravda, igaz hamis, doğru yanlış,
yes no, ja nein, oui non, sí no, si no, sì no, sim não, sim nao, ja nee, ja nej, ja nei, tak nie, так ні, да нет, да не,
da ne, da nu, ano ne, áno nie, kyllä ei, igen nem, evet hayır, ναι οχι, כן לא, نعم لا, có không, ya tidak, はい いいえ,
是 否, 예 아니오, 예 아니요
"""  # noqa: RUF001  # letters of other scripts that look like Latin ones
# Turkish letters without case are others than in English.
_SAID = [folded_line(pair).split() for said in _PAIRS.split(",") for pair in (said, said.replace("\u0131", "i"))]
_FALSE = frozenset(false for _, false in _SAID) | {"0", "0.0", "f", "n"}
_BOTH = frozenset(map(frozenset, _SAID))
LONGEST = 12


def are_true_and_false(cells: Collection[str]) -> bool:
    """Whether two cells are true and false in a language.

    >>> are_true_and_false({"WAHR", "FALSCH"}), are_true_and_false({"NO", "SE"})
    (True, False)
    """
    return frozenset(map(folded_line, cells)) in _BOTH


def is_false(cell: str) -> bool:
    """Whether a cell is false or a no in any language, or 0.

    >>> is_false("FALSCH"), is_false(" no"), is_false("VRAI"), is_false("maybe")
    (True, True, False, False)
    """
    return folded_line(cell) in _FALSE
