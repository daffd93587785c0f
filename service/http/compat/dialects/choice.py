"""Which dialect a request to `/rerank` is in."""

from typing import Literal, get_args

from polyrank.service.errors import DialectUnknown, HeaderInvalid
from polyrank.service.http.compat.schemas import CompatRerankIn

Dialect = Literal["tei", "cohere", "jina", "infinity", "voyage"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
HEADER = "X-Rerank-Dialect"


def of_header(value: str | None) -> Dialect | None:
    """Read the header's value; None where it was not sent.

    Raises:
        HeaderInvalid: it names no dialect.
    """
    if value is None:
        return None
    for dialect in DIALECTS:
        if value.strip().lower() == dialect:
            return dialect
    raise HeaderInvalid(f"{HEADER}: is not one of {', '.join(DIALECTS)}")


def of_body(body: CompatRerankIn, named: Dialect | None, setting: Dialect | None) -> Dialect:
    """Tell the dialect: the header has the first word, the body's shape the second, the setting the third.

    Args:
        body: what was sent.
        named: by the header.
        setting: of clients whose bodies look like those of others.

    Raises:
        DialectUnknown: there is nothing to rank.
    """
    if body.sent is None:
        raise DialectUnknown("give the texts to rank as `documents`, or as `texts` (TEI)")
    if named is not None:
        return named
    if body.texts is not None:
        return "tei"
    if setting is not None:
        return setting
    only_top_k = "top_k" in body.model_fields_set and "top_n" not in body.model_fields_set
    return "voyage" if only_top_k else "cohere"
