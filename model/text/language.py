"""Which language texts are in, told by their letters, without a network.

py3langid, a naive Bayes classifier over runs of bytes whose model of 4 MB comes with it, was the best of four packages
on replies of a few words (docs/measurements/words.md). It knows 97 languages; fewer to choose from make fewer mistakes,
so it chooses among those that are written most.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian",
    "sv": "Swedish", "ta": "Tamil", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese",
    "zh": "Chinese",
}  # fmt: skip
"""What is told apart: ISO 639-1, and what it is called."""

# Less sure ones are not told. Of 94 replies of one or two words (English, German, Spanish) 27 are so sure, 26 of them
# right. Of the 80 for which there is any guess, 38 are right.
SURE = 0.3
_MOST = 0.5  # a pool is in a model's languages unless more of its texts than this are not


def count_languages(texts: Sequence[str], sure: float = SURE) -> dict[str, int]:
    """Return how many texts look to be in each language, the most frequent first.

    Texts without letters count nowhere, nor do short ones that hardly tell a language, such as "OK": those whose
    language is less probable than `sure`.

    >>> count_languages(["Wann kommt mein Paket an?", "Das Paket ist noch unterwegs.", "12:30"])
    {'de': 2}
    """
    identifier = _identifier()
    guesses = (identifier.classify(text) for text in texts if any(map(str.isalpha, text)))
    counts = Counter(language for language, probability in guesses if probability >= sure)
    return dict(counts.most_common())


def foreign_to(languages: Collection[str], counts: Mapping[str, int]) -> int:
    """Return how many texts are in none of a model's languages, if these are most; 0: the model knows the texts.

    counts: texts by language. A model that names no languages knows all; so does one that names a language which is not
    told apart, because its texts count as another's: Icelandic looks Danish.

    >>> foreign_to(["en"], {"de": 9, "en": 1}), foreign_to(["en", "de"], {"de": 9, "en": 1}), foreign_to([], {"de": 9})
    (9, 0, 0)
    """
    if not LANGUAGES.keys() >= {*languages}:
        return 0
    foreign = sum(count for language, count in counts.items() if language not in languages)
    return foreign if languages and foreign > _MOST * sum(counts.values()) else 0


def why_foreign(model: str, languages: Collection[str], pool: Mapping[str, int]) -> str | None:
    """Return the line that says so of a model's pool; None: the model knows it.

    >>> why_foreign("chat-poly", ["en"], {"de": 1150, "nl": 19})
    '1,150 of 1,169 replies look German; chat-poly learnt English: take a model that learnt German'
    """
    if not foreign_to(languages, pool):
        return None
    most, count = max(((each, count) for each, count in pool.items() if each not in languages), key=lambda one: one[1])
    learnt = ", ".join(map(named, languages))
    looks = f"{count:,} of {sum(pool.values()):,} replies look {named(most)}"
    return f"{looks}; {model} learnt {learnt}: take a model that learnt {named(most)}"


def named(language: str) -> str:
    """Return what a language is called, or its code where it is not one of LANGUAGES."""
    return LANGUAGES.get(language, language)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # reads its model for half a second

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(list(LANGUAGES))
    return identifier
