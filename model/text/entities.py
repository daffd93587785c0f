"""Entities of HTML in what was said: mails and forms bring `R&uuml;ckgabe`, where somebody wrote an ü.

Read are those that end in a semicolon and have a name or a number that HTML knows. Where a text holds markup or code as
well, an entity is meant as it stands.
"""

import html
import re

_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
_SOURCE = re.compile(r"<[a-zA-Z/!?]|`")


def without_entities(text: str) -> str:
    """Return a text with the letters that its entities stand for.

    >>> without_entities("R&uuml;ckgabe &amp; Umtausch"), without_entities("AT&T, a < b; c&d;")
    ('Rückgabe & Umtausch', 'AT&T, a < b; c&d;')
    >>> without_entities("what does &lt;b&gt; mean in `&lt;b&gt;`?")
    'what does &lt;b&gt; mean in `&lt;b&gt;`?'
    """
    if "&" not in text or _SOURCE.search(text):
        return text
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def places_without_entities(text: str) -> list[int]:
    """Return where in a text each letter of `without_entities` comes from, and behind them the text's length.

    >>> places_without_entities("a&uuml;b")
    [0, 1, 7, 8]
    """
    places: list[int] = []
    end = 0
    for entity in _ENTITY.finditer(text) if without_entities(text) != text else ():
        places += range(end, entity.start())
        places += [entity.start()] * len(html.unescape(entity[0]))
        end = entity.end()
    return [*places, *range(end, len(text) + 1)]
