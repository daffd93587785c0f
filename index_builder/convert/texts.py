"""What a message says: the text of its parts, HTML and entities as text, without the mails that it quotes."""

import html
import re
from functools import cache
from typing import Any

from polyrank.index_builder.pool.values import has_tags

FORMS = ("plain", "entities", "slack", "html", "mail")
_PARTS = ("text", "content", "refusal", "value")  # where a part of a message, of whatever type, has its text
_MARK = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")  # of Slack: who or what is meant, and what is shown
_ENTITY = re.compile(r"&(?:[a-zA-Z][a-zA-Z0-9]{1,31}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
# The library's patterns take the cube of a line's length: what is longer is no head of a mail.
_MOST_LINES, _MOST_LINE, _BLANK = 200, 160, re.compile(r"\n{3,}")
_MOST_SIGNATURE_LINES = 8
_WORD = r"[^\s.?:\u3040-\u9fff\uac00-\ud7af]{1,40}"  # of a name behind a greeting
_FIELD, _FEWEST_FIELDS = re.compile(r"^[>* ]*[^\W\d][\w ]*:(?=.*\n)", re.M), 4  # forms have a subject and a date, too
_SPANISH = r"\n*(?:^[>* ]*(?:De|Enviad[oa](?: e[lm])?|Para|CC|Assunto|Asunto):.*\n){4,}"  # Outlook's; Portuguese, too
# Heads of Gmail and Apple Mail in any language: a date, an address and a colon, on one line or two. What 15.04 says may
# be a price: then a quote follows. The last are Thunderbird's, which name no address.
_YEAR, _DAY, _TIME = r"(?<!\d)(?:19|20)\d\d(?!\d)", r"\d{1,2}[./-]\d{1,2}[./-]\d{2}", r"(?<![\d.:])[0-2]?\d:[0-5]\d"
_ADDRESS = r"[^\n<]*(?:\n[^\n<]*)?<\s?[^\s<>@]{1,99}@[^\s<>]{1,99}>[^\n]{0,40}[:\uff1a]$"
_DATED = "|".join([
    rf"^(?=.*{_YEAR})(?=.*{_TIME}){_ADDRESS}",
    rf"^(?=.*{_YEAR})(?=.*\d\.\d\d){_ADDRESS}(?=\s*\n>)",
    rf"^[>* ]*(?:El|Em|Op|W dniu|Den) (?=.*(?:{_YEAR}|{_DAY}))(?=.*(?:{_TIME}|kl\b))"
    r".*\b(?:escribi\u00f3|escreveu|schreef|pisze|napisa\u0142|skrev)\b[^\n]{0,60}:$",
])  # fmt: skip
_QUOTE_END = re.compile(r"^>.*\n(\s*\n)?(?=[^>\s])", re.M)
_THANKS = re.compile(r"than|thx|dank|graci|merci|obrig|grazi|ta[ck]|dzi|děk|kiit", re.I)
_POSTSCRIPT = re.compile(r"^P\.? ?[SD]\b", re.M)
_LISTED, _CONTACT = re.compile(r"[-*•] |\d{1,2}[.)] "), re.compile(r"[|@]|www\.|\d{5}")


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
    if form == "slack":
        text = _MARK.sub(_shown, text)
    if form in ("html", "mail") and has_tags(text):
        import html_text

        text = html_text.extract_text(text)
    elif form != "plain" and _ENTITY.search(text):
        text = html.unescape(text)
    if form == "mail" and not keep_quotes:
        text = _without_quotes(text)
    return text.strip()


def _shown(mark: re.Match[str]) -> str:
    """Return what Slack shows of a mark: its name, else an address; an id says nothing."""
    kind, meant, name = mark.groups()
    if name:
        return f"{kind.strip('!')}{name}"
    return "" if kind else str(meant)


@cache
def _heads() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return what finds the head of a quoted mail, in a line or as fields, and the first line of a signature."""
    from mailparser_reply.constants import GENERIC_MAIL_SEPARATOR, MAIL_LANGUAGES

    known = [own for name, own in MAIL_LANGUAGES.items() if len(name) == 2]
    wrote = "|".join([*(own["wrote_header"] for own in known), GENERIC_MAIL_SEPARATOR, _DATED])
    fields = "|".join([_SPANISH, *(own["from_header"] for own in known)])
    closing = "|".join(each for own in known for each in own["signatures"] if each[0] != "/")  # commands begin so, too
    sent = "|".join(own["sent_from"] for own in known if own["sent_from"])
    # `Thanks,` begins sentences, too, and Danish `Tak` the English `Take`.
    names = rf"(?:{_WORD}+(?: {_WORD}+){{0,2}}+)?"
    signed = rf"--|__|(?:{closing})(?!\w)[ ,!]*{names}[.!]?|(?:{sent})\W*(?:\S++ ?){{0,4}}"
    flags = re.MULTILINE | re.IGNORECASE
    return re.compile(wrote, flags), re.compile(fields, flags), re.compile(rf"^(?:{signed})$", flags)


def _without_quotes(text: str) -> str:
    """Cut what a mail quotes, and the signature before it; a mail that would lose everything stays whole.

    So does one with an answer below what it quotes.
    """
    wrote, fields, _ = _heads()
    lines = _BLANK.sub("\n\n", text.replace("\r\n", "\n")).split("\n")
    shown = "\n".join(line[:_MOST_LINE].strip() for line in lines[:_MOST_LINES])
    heads = [head for head in fields.finditer(shown) if len(_FIELD.findall(head[0])) >= _FEWEST_FIELDS]
    heads += [head for head in wrote.finditer(shown) if head[0].startswith("-") or any(map(str.isdigit, head[0]))]
    head = min(heads, key=re.Match.start, default=None)
    if len(lines) > _MOST_LINES if head is None else _is_answered(shown[head.end() :].lstrip()):
        return text
    own = shown if head is None else shown[: head.start()].rstrip()
    kept = own[: _signature(own)].rstrip().split("\n")
    while kept and (kept[-1].startswith(">") or not kept[-1].strip("-_ ")):
        kept.pop()
    if not any(kept) or len(kept) == len(shown.strip().split("\n")):
        return text
    return "\n".join(lines[: len(kept)]).rstrip()


def _is_answered(quoted: str) -> bool:
    """Whether something is said below or between the lines that a mail quotes; these begin with `>`."""
    if not quoted.startswith(">"):
        return False
    for quote in _QUOTE_END.finditer(quoted):
        below = quoted[quote.end() :].partition("\n>")[0]
        below = below[: max(0, _signature(f"\n{below}") - 1)]
        if below.strip() and (quote[1] or _is_said(below.partition("\n")[0])):  # else it may be the end of a long line
            return True
    return False


def _signature(text: str) -> int:
    """Return where the signature of a mail begins; its length if it has none."""
    for closing in _heads()[2].finditer(text):
        after = text[closing.end() :].strip()
        # Thanks may stand amid a mail; below a greeting follow disclaimers.
        below = after if _THANKS.search(closing[0]) else after.partition("\n\n")[0]
        is_last = text.count("\n", closing.start()) < _MOST_SIGNATURE_LINES and not _POSTSCRIPT.search(after)
        if closing.start() and is_last and not any(map(_is_said, below.split("\n"))):
            return closing.start()
    return len(text)


def _is_said(line: str) -> bool:
    """Whether a line below a greeting says something, as no name or address does."""
    is_sentence = line.endswith((".", "!")) and line.count(" ") > 1
    is_long = len(line) > 80 and not _CONTACT.search(line)
    return is_sentence or is_long or line.endswith(("?", ":", "\u3002", "\uff1f")) or bool(_LISTED.match(line))
