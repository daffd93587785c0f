"""What a message says: the text of its parts, HTML and entities as text, without the mails that it quotes."""

import html
import re
from functools import cache
from typing import Any

from polyrank.index_builder.pool.values import has_tags

FORMS = ("plain", "entities", "html", "mail")
_PARTS = ("text", "content", "refusal", "value")  # where a part of a message, of whatever type, has its text
_ENTITY = re.compile(r"&(?:[a-zA-Z][a-zA-Z0-9]{1,31}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
# The library's patterns take the cube of a line's length: what is longer is no head of a mail.
_MOST_LINES, _MOST_LINE, _BLANK = 200, 160, re.compile(r"\n{3,}")
_MOST_SIGNATURE_LINES = 8


def message_text(value: Any, depth: int = 0) -> str:
    """Return the text of a message, which may be a list of parts; "" where there is none.

    >>> message_text(["See ", {"type": "link", "text": "https://x.example"}, "."])
    'See https://x.example.'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict):
        return next((text for name in _PARTS if depth < 4 and (text := message_text(value.get(name), depth + 1))), "")
    if not isinstance(value, list):
        return ""
    texts = [message_text(part, depth + 1) for part in value]
    return ("" if any(isinstance(part, str) for part in value) else "\n").join(filter(None, texts))


def read(text: str, form: str, keep_quotes: bool) -> str:
    """Return the text that a message of that form says."""
    if form in ("html", "mail") and has_tags(text):
        import html_text

        text = html_text.extract_text(text)
    elif form != "plain" and _ENTITY.search(text):
        text = html.unescape(text)
    if form == "mail" and not keep_quotes:
        text = _without_quotes(text)
    return text.strip()


@cache
def _languages() -> list[str]:
    from mailparser_reply.constants import MAIL_LANGUAGES

    return [name for name in MAIL_LANGUAGES if len(name) == 2]


def _without_quotes(text: str) -> str:
    """Cut what a mail quotes, and the signature before it; a mail that would lose everything stays whole."""
    from mailparser_reply.parser import EmailMessage

    lines = _BLANK.sub("\n\n", text.replace("\r\n", "\n")).split("\n")
    excerpt = "\n".join(line if len(line) <= _MOST_LINE else "…" for line in lines[:_MOST_LINES])
    reply = EmailMessage(text=excerpt, languages=_languages(), keep_hyphen_lists=True).read().replies[0]
    body = reply.content
    if reply.signatures and reply.signatures.count("\n") < _MOST_SIGNATURE_LINES and body.endswith(reply.signatures):
        body = body.removesuffix(reply.signatures).rstrip()
    reply_lines = body.rstrip().split("\n")
    while reply_lines and reply_lines[-1].startswith(">"):
        reply_lines.pop()
    indent = len(excerpt) - len(excerpt.lstrip())
    count = excerpt[:indent].count("\n") + len(reply_lines)
    if not any(map(str.strip, reply_lines)) or len(reply_lines) == len(excerpt.strip().split("\n")):
        return text
    return "\n".join(lines[:count]).rstrip()
