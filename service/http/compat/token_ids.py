"""Token ids that clients of OpenAI send in place of texts.

Some clients, LangChain's `OpenAIEmbeddings` among them, cut texts into tokens of OpenAI's vocabulary themselves.
"""

from functools import partial
from typing import Annotated, Any, Final, cast

from pydantic import Discriminator, Field, Tag
from starlette.requests import Request

from polyrank.model.errors import InvalidInput
from polyrank.model.text.tokenizer import Vocabulary
from polyrank.service.http.compat.lenient import Inputs
from polyrank.service.http.plumbing import bodies
from polyrank.service.resources import Resources

MOST_BYTES: Final = 4  # of a letter in UTF-8; a token has one at least

_TEXTS, _IDS, _LISTS = "list[str]", "list[int]", "list[list[int]]"


def _kind(sent: Any) -> str:
    """Say by the first one what a list holds, so that a mistake in it has one message."""
    first = sent[0] if isinstance(sent, list) and sent else None
    return _LISTS if isinstance(first, list) else _IDS if isinstance(first, int | float) else _TEXTS


_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
TextsOrIds = Annotated[
    Annotated[Inputs, Tag(_TEXTS)]
    | Annotated[_Ids, Tag(_IDS)]
    | Annotated[list[_Ids], Field(fail_fast=True), Tag(_LISTS)],
    Discriminator(_kind),
]


async def texts(
    request: Request, sent: str | list[str] | list[int] | list[list[int]], held: Resources
) -> str | list[str]:
    """Return what was sent, with texts in place of token ids.

    Raises:
        InvalidInput: ids were sent and there is no vocabulary, or it does not have one of them, or they are too many.
    """
    if isinstance(sent, str) or not sent or isinstance(sent[0], str):
        return cast(str | list[str], sent)
    if held.vocabulary is None:
        raise InvalidInput(
            "input: token ids are not taken without their vocabulary; send text "
            "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or give the server their "
            "file by POLYRANK_OPENAI_VOCABULARY"
        )
    lists = cast(list[list[int]], [sent] if isinstance(sent[0], int) else sent)
    bodies.check_count(lists, held.settings)
    most = MOST_BYTES * held.settings.max_text_chars
    if (longest := max(map(len, lists))) > most:
        raise InvalidInput(
            f"input: a text has {longest} tokens; at most {most} are allowed (the setting max_text_chars)"
        )
    made = await bodies.beside(request, partial(_read, lists, held.vocabulary), sum(map(len, lists)))
    return made[0] if isinstance(sent[0], int) else made


def _read(lists: list[list[int]], vocabulary: Vocabulary) -> list[str]:
    try:
        return [vocabulary.text(each) for each in lists]
    except InvalidInput as error:
        raise InvalidInput(f"input: {error}") from None
