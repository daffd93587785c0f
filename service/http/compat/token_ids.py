"""Token ids that clients of OpenAI send in place of texts.

Some clients, LangChain's `OpenAIEmbeddings` among them, cut texts into tokens of OpenAI's vocabulary themselves.
"""

from typing import Annotated, Any, cast

from pydantic import Discriminator, Field, Tag

from polyrank.model.errors import InvalidInput
from polyrank.model.text.vocabulary import Vocabulary
from polyrank.service.http.compat.lenient import Inputs
from polyrank.service.settings import CANDIDATES_CEILING

_TEXTS, _IDS, _LISTS = "list[str]", "list[int]", "list[list[int]]"


def _kind(sent: Any) -> str:
    """Say by the first one what a list holds, so that a mistake in it has one message."""
    first = sent[0] if isinstance(sent, list) and sent else None
    return _LISTS if isinstance(first, list) else _IDS if isinstance(first, int | float) else _TEXTS


_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
TextsOrIds = Annotated[
    Annotated[Inputs, Tag(_TEXTS)]
    | Annotated[_Ids, Tag(_IDS)]
    | Annotated[list[_Ids], Field(max_length=CANDIDATES_CEILING, fail_fast=True), Tag(_LISTS)],
    Discriminator(_kind),
]


def texts(sent: str | list[str] | list[int] | list[list[int]], vocabulary: Vocabulary | None) -> str | list[str]:
    """Return what was sent, with texts in place of token ids.

    Raises:
        InvalidInput: ids were sent and there is no vocabulary, or it does not have one of them.
    """
    if isinstance(sent, str) or not sent or isinstance(sent[0], str):
        return cast(str | list[str], sent)
    if vocabulary is None:
        raise InvalidInput(
            "input: token ids are not taken without their vocabulary; send text "
            "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or give the server their "
            "file by POLYRANK_OPENAI_VOCABULARY"
        )
    try:
        if isinstance(sent[0], int):
            return vocabulary.text(sent)
        return [vocabulary.text(each) for each in sent]
    except InvalidInput as error:
        raise InvalidInput(f"input: {error}") from None
