"""Types of the requests of other systems' clients: lenient where the clients need it.

Unknown fields are ignored, because clients send options of other servers (`priority`, `truncate`,
`max_tokens_per_doc`). Null means the same as an absent field. Types are checked strictly, except that a boolean may
be a string, as some clients send it.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from polyrank.service.http.plumbing.fields import In
from polyrank.service.settings import CANDIDATES_CEILING

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
Inputs = str | Annotated[list[str], Field(max_length=CANDIDATES_CEILING, fail_fast=True)]
