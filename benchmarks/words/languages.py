"""How often words alone find the right reply in twelve languages.

    python -m benchmarks.words.languages [--seed 0] [--output FOLDER]

In each language 64 questions are asked, and for each of them one of 64 replies is right. They share a noun and are made
of sentences that tell nothing, drawn for each: so a ranking by words has R@1 1 if it finds the words of the language,
and 1/64 if it does not. Nouns stand in the forms that both sides have anyway: as in a dictionary, with the particles
of Korean, with Turkish endings behind an apostrophe, behind a French elision. Prints a table of R@1, also for German,
Hindi, Korean and Turkish whose replies are decomposed (NFD). With `--output` the texts are written as files, for
`polyrank evaluate --model lexical --data FOLDER/LANGUAGE.jsonl --pool FOLDER/LANGUAGE.pool.jsonl`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
import orjson

from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.measures import Ties
from polyrank.model.rankers.lexical import BUILT_IN
from polyrank.model.text.assembly import Conversation


class Language(NamedTuple):
    """Nouns, and sentences about any of them; `form` makes what sentences name from a noun."""

    nouns: str
    questions: Sequence[str]
    replies: Sequence[str]
    form: Callable[[str], Mapping[str, str]] = lambda noun: {}


def _french(noun: str) -> dict[str, str]:
    return {"de": f"d'{noun}" if noun[0] in "aeéèhiou" else f"de {noun}"}


def _turkish(city: str) -> dict[str, str]:
    last = [letter for letter in city if letter in "aıoueiöüİIOU"][-1]
    vowel = "a" if last in "aıouIOU" else "e"
    stop = "t" if city[-1] in "fstkçşhp" else "d"
    return {
        "typed": city.replace("İ", "i").replace("I", "ı").lower(),
        "to": f"{city}'{'y' if city[-1] in 'aıoueiöü' else ''}{vowel}",
        "at": f"{city}'{stop}{vowel}",
        "from": f"{city}'{stop}{vowel}n",
    }


def _korean(noun: str) -> dict[str, str]:
    closed = (ord(noun[-1]) - ord("가")) % 28 > 0
    return {"topic": noun + "는은"[closed], "subject": noun + "가이"[closed], "object": noun + "를을"[closed]}


LANGUAGES: Mapping[str, Language] = {
    "German": Language(
        "Lampe Tische Stühle Betten Spiegel Läufer Vorhänge Kissen Bettwäsche Handtücher Seife Bürsten Kämme"
        " Messer Gabeln Löffel Teller Gläser Körbe Töpfe Öfen Kühlschränke Bügeleisen Fernseher Radios Wecker"
        " Kameras Hörgeräte Tastaturen Drucker Telefone Glühbirnen Fahrräder Reifen Helme Schirme Rucksäcke"
        " Koffer Geldbörsen Brillen Ringe Gürtel Hemden Röcke Mäntel Schuhe Strümpfe Fäustlinge Hüte Schals Zelte"
        " Drähte Leitern Hämmer Sägen Nägel Dübel Schläuche Blüten Kräuter Kerzen Bücher Füller Nüsse",
        (
            "Führen Sie auch {noun}?",
            "Haben Sie noch {noun} auf Lager?",
            "Wo finde ich {noun} bei Ihnen?",
            "Wie lange dauert es, wenn ich {noun} bestelle?",
        ),
        (
            "{noun} gibt es im zweiten Stock, gleich neben der Treppe.",
            "Ja, {noun} liefern wir bis Freitag nach Hause.",
            "Leider bekommen wir {noun} erst nächsten Monat wieder.",
            "Für {noun} zahlen Sie diese Woche nur die Hälfte.",
        ),
    ),
    "French": Language(
        "lampe table chaise lit miroir tapis rideau oreiller couverture serviette savon éponge peigne couteau"
        " fourchette cuillère assiette tasse bouteille poêle armoire réfrigérateur aspirateur téléviseur écran"
        " horloge appareil ordinateur clavier imprimante téléphone ampoule vélo pneu casque ombrelle échelle"
        " valise écharpe loupe anneau collier chemise pantalon habit manteau étagère aiguille gant chapeau huile"
        " tente corde agrafeuse marteau scie clou encre tuyau avoine fleur bougie livre crayon",
        (
            "Vous reste-t-il un peu {de} ?",
            "Quel est le prix {de} chez vous ?",
            "Je ne trouve pas {de}, pouvez-vous m'aider ?",
            "Est-ce qu'on peut commander plus {de} en ligne ?",
        ),
        (
            "Notre {noun} se trouve au deuxième étage, à côté de l'escalier.",
            "Chaque {noun} est à moitié prix cette semaine.",
            "Votre {noun} arrivera vendredi par la poste.",
            "Pour tout ce qui touche à {noun}, il faut attendre le mois prochain.",
        ),
        _french,
    ),
    "Spanish": Language(
        "lámpara mesa silla cama espejo alfombra cortina almohada manta toalla jabón cepillo peine cuchillo"
        " tenedor cuchara plato taza botella sartén horno frigorífico lavadora televisor radio reloj cámara"
        " ordenador teclado impresora teléfono pila bicicleta neumático casco paraguas mochila maleta cartera"
        " gafas anillo collar camisa pantalón vestido abrigo zapatos calcetines guantes sombrero bufanda tienda"
        " cuerda escalera martillo sierra clavo pintura manguera semillas flor vela libro lápiz",
        (
            "¿Todavía les queda {noun}?",
            "¿Cuánto cuesta {noun} ahora?",
            "¿Dónde está {noun}? No lo veo.",
            "¿Pueden enviarme {noun} para mañana?",
        ),
        (
            "Para {noun} hay que subir al segundo piso, junto a la caja.",
            "Esta semana tenemos {noun} a mitad de precio.",
            "Sí, {noun} llega el viernes a su domicilio.",
            "Lo siento, no habrá {noun} hasta el próximo mes.",
        ),
    ),
    "Turkish": Language(
        "İzmir İstanbul Ankara Antalya Bursa Adana Konya Gaziantep Şanlıurfa Kocaeli Mersin Diyarbakır Hatay"
        " Manisa Kayseri Samsun Balıkesir Kahramanmaraş Van Aydın Denizli Sakarya Tekirdağ Muğla Eskişehir Mardin"
        " Malatya Trabzon Erzurum Ordu Afyon Sivas Adıyaman Tokat Elazığ Zonguldak Kütahya Batman Ağrı Çanakkale"
        " Osmaniye Çorum Şırnak Isparta Giresun Muş Aksaray Edirne Düzce Kastamonu Uşak Niğde Kırşehir Bitlis"
        " Rize Amasya Siirt Bolu Nevşehir Hakkari Kırıkkale Bingöl Burdur Yalova",
        (
            "{typed} otobüsü kaçta kalkıyor?",
            "yarın için {typed} bileti var mı?",
            "{typed} seferleri ne kadar sürüyor?",
            "bavulum {typed} yolunda kayboldu, ne yapmalıyım?",
        ),
        (
            "{to} her sabah saat yedide bir araç gidiyor.",
            "Maalesef {from} gelen bütün koltuklar dolu.",
            "{at} bulunan ofisimiz size yardımcı olur.",
            "Yolculuk {to} kadar altı saat, mola bir kez.",
        ),
        _turkish,
    ),
    "Russian": Language(
        "лампа стол стул кровать зеркало ковёр занавеска подушка одеяло полотенце мыло щётка расчёска нож вилка"
        " ложка тарелка чашка бутылка сковорода духовка холодильник утюг телевизор радио часы камера компьютер"
        " клавиатура принтер телефон батарейка велосипед шина шлем зонт рюкзак чемодан кошелёк очки кольцо"
        " ожерелье рубашка брюки платье пальто ботинки носки перчатки шляпа шарф палатка верёвка лестница молоток"
        " пила гвоздь краска шланг семена цветок свеча книга карандаш",
        (
            "У вас ещё есть {noun}?",
            "Сколько сейчас стоит {noun}?",
            "Где у вас находится {noun}?",
            "Когда можно забрать мой заказ: {noun}?",
        ),
        (
            "Конечно, {noun} на втором этаже возле лестничной площадки.",
            "На этой неделе {noun} за полцены.",
            "Да, {noun} будет у вас дома в пятницу.",
            "К сожалению, {noun} появится только через месяц.",
        ),
    ),
    "Greek": Language(
        "λάμπα τραπέζι καρέκλα κρεβάτι καθρέφτης χαλί κουρτίνα μαξιλάρι κουβέρτα πετσέτα σαπούνι βούρτσα χτένα"
        " μαχαίρι πιρούνι κουτάλι πιάτο φλιτζάνι μπουκάλι τηγάνι φούρνος ψυγείο πλυντήριο τηλεόραση ραδιόφωνο"
        " ρολόι κάμερα υπολογιστής πληκτρολόγιο εκτυπωτής τηλέφωνο μπαταρία ποδήλατο λάστιχο κράνος ομπρέλα"
        " σακίδιο βαλίτσα πορτοφόλι γυαλιά δαχτυλίδι κολιέ πουκάμισο παντελόνι φόρεμα παλτό παπούτσια κάλτσες"
        " γάντια καπέλο κασκόλ σκηνή σχοινί σκάλα σφυρί πριόνι καρφί μπογιά σωλήνας σπόροι λουλούδι κερί βιβλίο"
        " μολύβι",
        (
            "Έχετε ακόμα {noun};",
            "Πόσο κάνει {noun} τώρα;",
            "Πού θα βρω {noun}; Δεν βλέπω τίποτα.",
            "Μπορώ να παραγγείλω {noun} για αύριο;",
        ),
        (
            "Το είδος «{noun}» είναι στον δεύτερο όροφο.",
            "Αυτή την εβδομάδα {noun} στη μισή τιμή.",
            "Ναι, {noun} φτάνει στο σπίτι σας την Παρασκευή.",
            "Δυστυχώς {noun} δεν θα υπάρχει πριν από τον άλλο μήνα.",
        ),
    ),
    "Arabic": Language(
        "مصباح طاولة كرسي سرير مرآة سجادة ستارة وسادة بطانية منشفة صابون فرشاة مشط سكين شوكة ملعقة طبق كوب زجاجة"
        " مقلاة فرن ثلاجة غسالة تلفاز مذياع ساعة كاميرا حاسوب لوحة طابعة هاتف بطارية دراجة إطار خوذة مظلة حقيبة"
        " محفظة نظارة خاتم قلادة قميص بنطال فستان معطف حذاء جوارب قفازات قبعة وشاح خيمة حبل سلم مطرقة منشار مسمار"
        " دهان خرطوم بذور زهرة شمعة كتاب قلم دلو",
        (
            "هل عندكم {noun} الآن؟",
            "كم سعر {noun} هذا الأسبوع؟",
            "أين أجد {noun} من فضلك؟",
            "هل يمكن إرسال {noun} إلى بيتي غدا؟",
        ),
        (
            "نعم، {noun} في الطابق الثاني بجانب الدرج.",
            "أي {noun} بنصف الثمن حتى الجمعة.",
            "سيصلك {noun} مع البريد يوم الاثنين.",
            "للأسف لن يتوفر {noun} قبل الشهر القادم.",
        ),
    ),
    "Hindi": Language(
        "लैंप मेज़ कुर्सी बिस्तर दर्पण कालीन पर्दा तकिया कंबल तौलिया साबुन ब्रश कंघी चाकू कांटा चम्मच थाली"
        " प्याला बोतल कड़ाही तंदूर फ्रिज पंखा टेलीविज़न रेडियो घड़ी कैमरा कंप्यूटर कीबोर्ड प्रिंटर टेलीफ़ोन बैटरी"
        " साइकिल टायर हेलमेट छाता बस्ता सूटकेस बटुआ चश्मा अंगूठी हार कमीज़ पतलून पोशाक कोट जूते मोज़े दस्ताने"
        " टोपी दुपट्टा तंबू रस्सी सीढ़ी हथौड़ा आरी कील रंग नली बीज फूल मोमबत्ती किताब पेंसिल",
        (
            "क्या आपके पास {noun} है?",
            "आजकल {noun} का दाम कितना है?",
            "मुझे {noun} कहाँ मिल सकता है?",
            "क्या कल तक {noun} घर भेज सकते हैं?",
        ),
        (
            "जी हाँ, {noun} दूसरी मंज़िल पर सामने रखा है।",
            "इस हफ़्ते {noun} आधी कीमत पर मिल रहा है।",
            "आपका {noun} शुक्रवार को डाक से पहुँचेगा।",
            "माफ़ कीजिए, {noun} अगले महीने ही आएगा।",
        ),
    ),
    "Thai": Language(
        "โคมไฟ โต๊ะ เก้าอี้ เตียง กระจก พรม ผ้าม่าน หมอน ผ้าห่ม ผ้าเช็ดตัว สบู่ แปรง หวี มีด ส้อม ช้อน จาน ถ้วย"
        " ขวด กระทะ เตาอบ ตู้เย็น เครื่องซักผ้า โทรทัศน์ วิทยุ นาฬิกา กล้อง คอมพิวเตอร์ แป้นพิมพ์ เครื่องพิมพ์"
        " โทรศัพท์ แบตเตอรี่ จักรยาน ยางรถ ร่ม เป้ กระเป๋าเดินทาง แว่นตา แหวน สร้อยคอ เสื้อเชิ้ต กางเกง กระโปรง"
        " รองเท้า ถุงเท้า ถุงมือ หมวก ผ้าพันคอ เต็นท์ เชือก บันได ค้อน เลื่อย ตะปู จักรเย็บ สายยาง เมล็ดพันธุ์"
        " ดอกไม้ เทียน หนังสือ ดินสอ กรรไกร ขนมปัง น้ำผึ้ง",
        (
            "ที่ร้านยังมี{noun}อยู่ไหมครับ",
            "ตอนนี้{noun}ราคาเท่าไหร่คะ",
            "ฉันจะหา{noun}ได้ที่ไหน",
            "ช่วยส่ง{noun}ให้ถึงบ้านพรุ่งนี้ได้ไหม",
        ),
        (
            "มีค่ะ {noun}อยู่ชั้นสองใกล้ลิฟต์",
            "สัปดาห์นี้{noun}ลดครึ่งราคาทุกชิ้น",
            "เราจะจัดส่ง{noun}ถึงคุณในวันศุกร์",
            "ขออภัยค่ะ {noun}จะเข้ามาอีกครั้งเดือนหน้า",
        ),
    ),
    "Chinese": Language(
        "台灯 桌子 椅子 床单 镜子 地毯 窗帘 枕头 毯子 毛巾 肥皂 刷子 梳子 菜刀 叉子 勺子 盘子 杯子 茶 平底锅"
        " 烤箱 冰箱 洗衣机 电视机 收音机 闹钟 相机 电脑 键盘 打印机 电话 电池 自行车 轮胎 头盔 雨伞 背包 行李箱"
        " 钱包 眼镜 戒指 项链 衬衫 裤子 裙子 大衣 皮鞋 袜子 手套 帽子 围巾 帐篷 绳子 盐 锤子 锯子 钉子 油漆 水管"
        " 种子 鲜花 蜡烛 书 铅笔",
        (
            "请问你们这里还有{noun}吗？",
            "{noun}现在多少钱？",
            "我在哪里可以找到{noun}？",
            "明天之前能把{noun}送到家吗？",
        ),
        (
            "有的，{noun}在二楼的楼梯旁边。",
            "这个星期{noun}全部半价。",
            "我们星期五会把您的{noun}寄出。",
            "很抱歉，{noun}要下个月才会到货。",
        ),
    ),
    "Japanese": Language(
        "ランプ テーブル 椅子 ベッド 鏡 絨毯 カーテン 枕 毛布 タオル 石鹸 ブラシ 櫛 包丁 フォーク スプーン 皿"
        " カップ 瓶 鍋 オーブン 冷蔵庫 洗濯機 テレビ ラジオ 時計 カメラ パソコン キーボード プリンター 電話 電池"
        " 自転車 タイヤ ヘルメット 傘 リュック スーツケース 財布 めがね 指輪 ネックレス シャツ ズボン ドレス"
        " コート 靴 ソックス 手袋 帽子 マフラー テント ロープ はしご 金槌 のこぎり 釘 ペンキ ホース 種 花 蝋燭 本"
        " 鉛筆",
        (
            "{noun}はどこに置いてありますか？",
            "今、{noun}はおいくらですか。",
            "明日までに{noun}を届けてもらえますか？",
            "そちらに{noun}の在庫はまだありますか",
        ),
        (
            "はい、{noun}は二階の売り場にございます。",
            "今週は{noun}がすべて半額です。",
            "金曜日に{noun}をお送りいたします。",
            "申し訳ございません、{noun}の入荷は来月になります。",
        ),
    ),
    "Korean": Language(
        "램프 식탁 의자 침대 거울 양탄자 커튼 베개 담요 수건 비누 솔 빗 칼 포크 숟가락 접시 컵 병 프라이팬 오븐"
        " 냉장고 세탁기 텔레비전 라디오 시계 카메라 컴퓨터 키보드 프린터 전화기 건전지 자전거 타이어 헬멧 우산"
        " 배낭 여행가방 지갑 안경 반지 목걸이 셔츠 바지 원피스 코트 구두 양말 장갑 모자 목도리 텐트 밧줄 사다리"
        " 망치 톱 못 페인트 호스 씨앗 꽃 양초 책 연필",
        (
            "혹시 {subject} 아직 남아 있나요?",
            "요즘 {topic} 얼마예요?",
            "{object} 어디에서 찾을 수 있어요?",
            "내일까지 {object} 집으로 보내 주실 수 있나요?",
        ),
        (
            "네, {topic} 이층 계단 옆에 있습니다.",
            "이번 주에는 {subject} 모두 반값이에요.",
            "금요일에 {object} 택배로 보내 드리겠습니다.",
            "죄송하지만 {topic} 다음 달에나 들어옵니다.",
        ),
        _korean,
    ),
}
DECOMPOSED = ("German", "Turkish", "Hindi", "Korean")


class Asked(NamedTuple):
    """Questions, and the right reply to each."""

    questions: list[str]
    replies: list[str]


def asked(language: Language, seed: int = 0) -> Asked:
    """Draw a question and a reply about each noun."""
    draw = Random(seed)
    questions, replies = [], []
    for noun in language.nouns.split():
        forms = {"noun": noun, **language.form(noun)}
        questions.append(draw.choice(language.questions).format(**forms))
        replies.append(draw.choice(language.replies).format(**forms))
    return Asked(questions, replies)


def recall(texts: Asked) -> float:
    """Return R@1 of words alone among all replies; a tie counts by the chance that the right one leads."""
    evidence = BUILT_IN.evidence
    assert evidence is not None
    model, table = LexicalScore(evidence), WordTable.of(texts.replies, Statistics.of(texts.replies))
    values = (model.values(Conversation.of(question), table) for question in texts.questions)
    own = np.eye(len(texts.replies))
    return float(np.mean([Ties.of(each, own[at]).found(1) for at, each in enumerate(values)]))


def decomposed(texts: Asked) -> Asked:
    """Write the replies as a file system or an old program may: every letter before its marks."""
    return Asked(texts.questions, [normalize("NFD", reply) for reply in texts.replies])


def _write(folder: Path, name: str, texts: Asked) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    examples = ({"context": [q], "response": r} for q, r in zip(*texts, strict=True))
    pool = ({"id": f"r{at}", "text": reply} for at, reply in enumerate(texts.replies))
    for rows, file in ((examples, f"{name}.jsonl"), (pool, f"{name}.pool.jsonl")):
        (folder / file).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sentences; default: 0")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write the texts there")
    arguments = parser.parse_args(argv)
    sets = {name: asked(language, arguments.seed) for name, language in LANGUAGES.items()}
    sets |= {f"{name} (NFD)": decomposed(sets[name]) for name in DECOMPOSED}
    print("| language | R@1 |\n| --- | --- |")
    for name, texts in sets.items():
        if arguments.output:
            _write(arguments.output, name, texts)
        print(f"| {name} | {recall(texts):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
