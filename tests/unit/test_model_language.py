"""Which language texts are in, and what is said where a model does not know it."""

import pytest

from polyrank.model.text.language import LANGUAGES, count_languages, foreign_to, why_foreign

REPLIES = {
    "de": ["Ihr Paket ist noch unterwegs.", "Möchten Sie lieber mit Karte bezahlen?", "Gern geschehen, bis bald!"],
    "es": ["Su paquete todavía está en camino.", "¿Prefiere pagar con tarjeta?", "De nada, ¡hasta pronto!"],
    "fr": ["Votre colis est encore en route.", "Voulez-vous payer par carte ?", "Je vous en prie, à bientôt !"],
    "ja": ["お荷物はまだ配送中です。", "カードでお支払いになりますか。", "どういたしまして。"],
    "zh": ["您的包裹还在路上。", "您想刷卡付款吗？", "不客气，再见！"],
    "en": ["Your parcel is still on its way.", "Would you rather pay by card?", "You're welcome, see you soon!"],
}


@pytest.mark.parametrize("language", REPLIES)
def test_the_language_of_short_replies(language: str) -> None:
    assert count_languages(REPLIES[language]) == {language: 3}


def test_the_most_frequent_language_comes_first() -> None:
    mixed = [*REPLIES["en"][:1], *REPLIES["de"], "12:30", "…", ""]
    assert list(count_languages(mixed).items()) == [("de", 3), ("en", 1)], "texts without letters count nowhere"


def test_short_texts_that_tell_no_language_count_nowhere() -> None:
    assert count_languages(["OK", "No", "Ja", "Ne", "Sure", "Blue", "XL"]) == {}
    assert count_languages(["OK", *REPLIES["de"]]) == {"de": 3}


@pytest.mark.parametrize(("language", "replies"), [
    ("en", "Yes; No; Hello; Thanks; Thank you; Bye; Cool; Great; Maybe; No problem; Good; See you; Goodbye; Help"),
    ("de", "Ja; Nein; Hallo; Danke; Bitte; Gerne; Klar; Super; Vielleicht; Gut; Alles klar; Perfekt; Genau; Bald"),
    ("es", "Sí; Hola; Gracias; Claro; Genial; Bien; Azul; Listo; Exacto; Un momento; Pronto; De nada; Lo siento"),
])  # fmt: skip
def test_a_pool_of_single_words_is_not_foreign(language: str, replies: str) -> None:
    assert foreign_to((language,), count_languages(replies.split("; "))) == 0


def test_half_of_a_pool_in_a_models_language_is_enough() -> None:
    assert foreign_to(("en",), {"de": 50, "en": 50}) == 0
    assert foreign_to(("en",), {"de": 51, "en": 49}) == 51
    assert foreign_to(("en",), {}) == 0


def test_the_line_names_what_is_seen_and_what_was_learnt() -> None:
    line = "40 of 60 replies look Spanish; own learnt German, English: take a model that learnt Spanish"
    assert why_foreign("own", ("de", "en"), {"es": 40, "pt": 15, "en": 5}) == line
    assert why_foreign("own", ("de", "en"), {"de": 40, "en": 20}) is None
    line = "1 of 1 replies look English; own learnt French: take a model that learnt English"
    assert why_foreign("own", ("fr",), {"en": 1}) == line


@pytest.mark.parametrize(("code", "replies"), [
    ("nb", ["Pakken din er fortsatt på vei.", "Vil du heller betale med kort?", "Bare hyggelig, ses snart!"]),
    ("is", ["Pakkinn þinn er enn á leiðinni.", "Viltu frekar borga með korti?", "Ekkert að þakka, sjáumst!"]),
    ("eu", ["Zure paketea bidean da oraindik.", "Nahiago duzu txartelarekin ordaindu?", "Ez horregatik, gero arte!"]),
])  # fmt: skip
def test_a_model_of_a_language_that_is_not_told_apart_knows_its_pool(code: str, replies: list[str]) -> None:
    seen = count_languages(replies)
    assert foreign_to(("en",), seen) > 0, "the texts count as those of others"
    assert why_foreign("own", (code,), seen) is None
    assert foreign_to(("en", code), seen) == 0


def test_codes_are_those_of_iso_639_1() -> None:
    assert all(len(code) == 2 and code.islower() for code in LANGUAGES)
