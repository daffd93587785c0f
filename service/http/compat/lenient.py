"""Types of the requests of other systems' clients: lenient where the clients need it.

Every field of the dialects belongs to one of three classes. It is honoured; or it is ignored, because whatever it holds
changes nothing here; or it asks for what this server does not do, and is refused. Fields that no dialect has are
ignored. Null means the same as an absent field. Types are checked strictly, except that a boolean may be a string, as
some clients send it. docs/how-to/other-clients.md lists the fields of every route.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from polyrank.model.errors import InvalidInput
from polyrank.service.api.fields import IN_ORDER, In

_AS_STRINGS = {"true": True, "True": True, "false": False, "False": False}


class Lenient(In):
    """A request whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


def _flag(value: Any) -> Any:
    return _AS_STRINGS.get(value, value) if isinstance(value, str) else value


Flag = Annotated[
    bool | None,
    BeforeValidator(_flag),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": sorted(_AS_STRINGS)}, {"type": "null"}]}),
]
Count = Annotated[int, Field(ge=0)]
Inputs = Annotated[Annotated[list[str], Field(fail_fast=True)] | str, IN_ORDER]


@dataclass(frozen=True, slots=True)
class RefusedField:
    """Marks a field that asks for what is not done here; it may be empty, or hold what is done anyway."""

    why: str
    defaults: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"description": self.described, **handler(schema)}

    @property
    def described(self) -> str:
        """What may stand there, and why nothing else."""
        choices = " or ".join(["empty", *(f"`{value}`".lower() for value in self.defaults)])
        return f"{choices}; else refused: {self.why}"

    def _checked(self, value: Any) -> Any:
        if value is None or value in ("", [], {}) or _flag(value) in self.defaults:
            return value
        raise ValueError(f"{self.why}; leave it out")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Marks a field that changes nothing here, whatever it holds."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"description": "ignored: it changes nothing here", **handler(schema)}


Anything = Annotated[JsonValue, Ignored()]
Instruction = Annotated[JsonValue, RefusedField("the models here take no instructions and no templates")]

_WAY = Field(default=None, description="refused where a text is too long, and this asks for another way to treat it")
Limit = Annotated[
    int | None,
    Field(ge=-1, description="tokens; refused where it is less than the model reads, and a text may be longer"),
]
_End = Annotated[
    Literal["left", "right"] | None,
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"enum": ["left", "Left", "right", "Right"]}, {"type": "null"}]}),
]


def check_limit(name: str, limit: int | None, texts: Sequence[str], most_tokens: int | None, beside: str = "") -> None:
    """Raise InvalidInput if texts are to be cut at a limit where the model would read on.

    Args:
        name: of the field.
        limit: in tokens; None or -1: there is none.
        texts: a token of these is a byte or more.
        most_tokens: that the model reads of a text; None: that is not known.
        beside: a text that counts together with each.
    """
    if limit is None or limit < 0 or (most_tokens is not None and limit >= most_tokens):
        return
    room = limit - len(beside.encode())
    if any(len(text.encode()) > room for text in texts):
        raise InvalidInput(f"{name}: a text may have more tokens than {limit}, and the model reads on; leave it out")


class Cutting(Lenient):
    """Texts, and what a client wants of those that are too long. Here they lose their end."""

    truncate: Flag | Literal["NONE", "START", "END"] = _WAY
    truncation: Flag = _WAY
    truncation_direction: _End = _WAY
    truncation_side: _End = _WAY
    truncate_prompt_tokens: Limit = None

    def check_cut(self, cut: int, most_tokens: int, documents: bool = True) -> None:
        """Raise InvalidInput if texts were cut, documents among them, and the request wants another thing of them."""
        if not cut:
            return
        why = f"{cut} of the texts are too long for the model, which reads {most_tokens} tokens"
        for name in ("truncate", "truncation", "truncation_direction", "truncation_side"):
            if getattr(self, name) in (False, "NONE"):
                raise InvalidInput(f"{name}: {why}; shorten them, or let them be cut")
            if documents and getattr(self, name) in ("START", "left"):
                raise InvalidInput(f"{name}: {why}; they lose their end, not their beginning; leave it out")


Prompt = Literal["query", "document", "passage", "corpus"]
InputType = Literal["query", "document", "passage", "search_query", "search_document"]
Task = Literal["retrieval.query", "retrieval.passage"]
_QUERIES: Final = ("query", "search_query", "retrieval.query")


def are_queries(**fields: str | None) -> bool:
    """Whether texts are to be embedded as queries, that is as contexts, or else as candidates.

    Raises InvalidInput if one field says so, and another says that they are documents.
    """
    is_query = {name: value in _QUERIES for name, value in fields.items() if value is not None}
    if len(set(is_query.values())) > 1:
        raise InvalidInput(f"{' and '.join(is_query)}: one asks for queries, another for documents; give one of them")
    return any(is_query.values())
