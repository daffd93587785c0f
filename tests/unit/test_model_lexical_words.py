"""Words of texts in many languages."""

import time
from unicodedata import normalize

import numpy as np
import pytest

from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics, keys_of, normalised, words
from polyrank.model.rankers.lexical import BUILT_IN
from polyrank.model.text.assembly import Conversation


@pytest.mark.parametrize(("text", "expected"), [
    ("", []),
    (" ?! \n", []),
    ("Hello, WORLD", ["hello", "world"]),
    ("straße STRASSE", ["strasse", "strasse"]),
    ("don't don\u2019t dont", ["dont", "dont", "dont"]),
    ("a-b c_d e.f", ["a", "b", "c", "d", "e", "f"]),
    ("__init__ _ -", ["init"]),
    ("order #ORD-123-X.", ["order", "ord-123-x"]),
    ("error:0x80070057!", ["error", "0x80070057"]),
    ("v2.3.1-rc_4, 3.5mm", ["v2.3.1-rc_4", "3.5mm"]),
    ("10:30 and 1/2", ["10", "30", "and", "1", "2"]),
    ("\u0397\u039b\u0399\u039f\u03a3 42", ["\u03b7\u03bb\u03b9\u03bf\u03c3", "42"]),
    ("\ud800x", ["x"]),
    ("Mu\u0308ller M\u00fcller Mu\u00ad\u0308\u200bller", ["m\u00fcller"] * 3),
    ("हिन्दी में नमस्ते", ["हिन्दी", "में", "नमस्ते"]),
    ("\u0130zmir'e izmir \u0130ZM\u0130R\u2019den", ["izmir", "e", "izmir", "izmir", "den"]),
    ("Isparta'ya \u0131sparta ORD-1'i", ["isparta", "ya", "isparta", "ord-1", "i"]),
    ("l'hôtel d\u2019eau dell'anno", ["l", "hôtel", "d", "eau", "dell", "anno"]),
    ("o'clock ma'am y'all c'mon O'Brien's it\u2019s", ["oclock", "maam", "yall", "cmon", "obriens", "its"]),
    ("п'ять п\u02bcять пять", ["пять"] * 3),
    ('צה"ל צה\u05f4ל צהל "צהל"', ["צהל"] * 4),
    ("col\u00b7lecció co\u0140lecció a\u00b7b 3\u00b75", ["collecció"] * 2 + ["a", "b", "3", "5"]),
    ("猫", ["猫"]),
    ("订单ORD-123-x已到。", ["订", "单", "订单", "ord-123-x", "已", "到", "已到"]),
    ("タワー3個 ﾀﾜｰ", ["タワ", "ワー", "タワー", "3", "個", "タワ", "ワー", "タワー"]),
    ("あ ア か\u3099", ["あ", "ア", "が"]),
    ("มีด", ["มี", "มีด"]),
    ("책을 책 ORD-1이 학교에서", ["책을", "책", "책", "ord-1", "이", "학교", "교에", "에서", "학교에"]),
    ("hi👍🏽 👩\u200d💻👩 🇩🇪🇫🇷", ["hi", "👍🏽", "👩\u200d💻", "👩", "🇩🇪", "🇫🇷"]),
    ("\u2764\ufe0f \u2764", ["\u2764", "\u2764"]),
    ("Windows\u2122 \u00a9 \u2116123 9\ufe0f\u20e3", ["windows", "123", "9"]),
    ("1\u00bd \u00bd x\u00b2", ["1", "1", "2", "1", "2", "x2"]),
    ("don\u00b4t \u0301a a\u0301", ["don", "t", "a", "á"]),
    ("ORD\u2011123 e\u2010mail", ["ord-123", "e", "mail"]),
    ("می\u200cخواهم", ["میخواهم"]),
    ("\U00010d41", ["\U00010d41"]),  # a digit of Unicode 16, which Python 3.12 does not know
    ("طلب ١٢٣ ۱۲۳ ORD-१२३ ๑๒๓ １２３", ["طلب", "123", "123", "ord-123", "123", "123"]),
])  # fmt: skip
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize("piece", [
    "a.", "a", "1-", "'", "_", "a'", "\u0315\u0300", "a_1.", "漢",
    "각", "ก็", "か\u3099", "ll'a", "👩\u200d", 'א"', "l\u00b7",
])  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    """Twenty times the text takes nothing like four hundred times as long."""

    def seconds(text: str) -> float:
        began = time.process_time()
        words(f"é {text}")  # the long way round, whatever the piece
        return time.process_time() - began

    small = min(seconds(piece * 5_000) for _ in range(5))
    assert seconds(piece * 100_000) < 100 * small + 0.1


@pytest.mark.parametrize(("one", "other"), [
    ("Yes!", "yes"), ("Ok,  then.", "ok then"), (":-)", " :-) "),
    ("?", "?"), ("Grün.", "gru\u0308n"), ("好的！", "好的"),
])  # fmt: skip
def test_the_same_text(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"), [("yes", "no"), ("a b", "ab"), ("a b", "b a"), (":-)", ":-("), ("?", ""), ("東京都", "東京 京都")]
)
def test_another_text(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_lone_surrogates_have_keys() -> None:
    assert len({*keys_of(["\ud800", "\ud801"]).tolist()}) == 2


# Nouns, a question and a reply; / parts the forms in question and reply where they differ.
LANGUAGES = {
    "German": (
        "Stühle Läufer Bücher Hörgeräte Gürtel Töpfe Nüsse Schlüssel",
        "Führen Sie auch {}?",
        "{} gibt es im zweiten Stock.",
    ),
    "French": (
        "d'huile/huile d'ombrelle/ombrelle d'écran/écran d'avoine/avoine table miroir d'horloge/horloge d'encre/encre",
        "Quel est le prix {} ?",
        "Notre {} se trouve au deuxième étage.",
    ),
    "Spanish": ("lámpara jabón sartén neumático teléfono lápiz camión cajón", "¿Cuánto cuesta {}?", "No habrá {} hoy."),
    "Turkish": (
        "izmir/İzmir'e ısparta/Isparta'ya istanbul/İstanbul'dan muğla/Muğla'da van/Van'ın ordu/Ordu'yla uşak/Uşak'ta"
        " niğde/Niğde'ye",
        "{} otobüsü kaçta?",
        "{} giden araç saat yedide.",
    ),
    "Russian": ("ковёр щётка стул чайник ёлка утюг йод зонт", "Сколько стоит {}?", "Конечно, {} на втором этаже."),
    "Greek": ("καθρέφτης υπολογιστής σωλήνας χαλί ρολόι κερί σκηνή ΨΥΓΕΊΟ/ψυγείο", "Έχετε {};", "Όχι, {} τελείωσε."),
    "Arabic": ("مصباح طاولة كرسي مرآة ستارة ساعة هاتف دراجة", "كم سعر {} اليوم؟", "نعم، {} في الطابق الثاني."),
    "Hindi": ("मेज़ कुर्सी तौलिया चम्मच घड़ी छाता सीढ़ी हथौड़ा", "क्या आपके पास {} है?", "जी हाँ, {} ऊपर रखा है।"),
    "Thai": ("โต๊ะ เก้าอี้ สบู่ มีด ช้อน นาฬิกา ตะปู หนังสือ", "ร้านนี้มี{}ไหมครับ", "ขออภัยค่ะ {}จะเข้ามาเดือนหน้า"),
    "Chinese": ("台灯 镜子 茶 洗衣机 电脑 雨伞 书 钉子", "请问你们这里还有{}吗？", "有的，{}在二楼。"),
    "Japanese": ("ランプ 椅子 鏡 洗濯機 のこぎり 傘 時計 釘", "{}はどこにありますか？", "ごめんなさい、{}は来月です。"),
    "Korean": (
        "램프가/램프는 의자가/의자는 칼이/칼은 시계가/시계는 우산이/우산은 책이/책은 망치가/망치는 꽃이/꽃은",
        "혹시 {} 남아 있나요?",
        "네, {} 이층에 있습니다.",
    ),
}


def pairs(language: str) -> list[tuple[str, str]]:
    nouns, question, reply = LANGUAGES[language]
    forms = [noun.partition("/") for noun in nouns.split()]
    return [(question.format(asked), reply.format(told or asked)) for asked, _, told in forms]


POOL = [reply for language in LANGUAGES for _, reply in pairs(language)]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_right_reply_is_first(language: str, form: str) -> None:
    replies = [normalize(form, reply) for reply in POOL]
    assert BUILT_IN.evidence is not None
    evidence, table = LexicalScore(BUILT_IN.evidence), WordTable.of(replies, Statistics.of(replies))
    for question, reply in pairs(language):
        scores = evidence.values(Conversation.of(question), table)
        assert np.flatnonzero(scores == scores.max()).tolist() == [POOL.index(reply)], question


@pytest.mark.parametrize(
    ("written", "usual"), [("كِتَابٌ", "كتاب"), ("كـــتاب", "كتاب"), ("محمّد", "محمد"), ("خانهٔ", "خانه"), ("שָׁלוֹם", "שלום")]
)
def test_marks_that_may_be_left_out_make_no_other_word(written: str, usual: str) -> None:
    assert words(written) == words(usual) == [usual]
    assert normalised(written) == usual
    assert words("ا\u0653ب") == words("آب") != words("اب"), "this mark is part of the letter"
