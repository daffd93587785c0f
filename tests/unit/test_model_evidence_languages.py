"""Words alone find the right reply in every script (benchmarks/words/languages.py asks more in each language)."""

from unicodedata import normalize

import numpy as np
import pytest

from polyrank.model.lexical.score import Evidence
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.rankers.lexical import BUILT_IN
from polyrank.model.text.assembly import Conversation

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
    evidence, table = Evidence(BUILT_IN.evidence), WordTable.of(replies, Statistics.of(replies))
    for question, reply in pairs(language):
        scores = evidence.values(Conversation.of(question), table)
        assert np.flatnonzero(scores == scores.max()).tolist() == [POOL.index(reply)], question
