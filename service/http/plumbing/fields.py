"""Types that the bodies of requests and answers are made of, for all routes."""

import math
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, WithJsonSchema


class Out(BaseModel):
    """An answer, or a part of one: it holds what is listed and nothing else."""

    model_config = ConfigDict(extra="forbid")


def _not_blank(text: str) -> str:
    if not text or text.isspace():
        raise ValueError("must not be empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank), WithJsonSchema({"type": "string", "pattern": r"\S"})]


def storable(value: JsonValue) -> JsonValue:
    """Return the value if JSON and a store keep it as it is.

    Raises:
        ValueError: it holds, at any depth, NaN, an infinity, or a whole number beyond 64 bits.
    """
    stack = [value]
    while stack:
        match stack.pop():
            case dict() as inner:
                stack.extend(inner.values())
            case list() as inner:
                stack.extend(inner)
            case float() as number if not math.isfinite(number):
                raise ValueError("numbers must be finite")
            case int() as number if not -(2**63) <= number < 2**63:
                raise ValueError("whole numbers must fit 64 bits")
    return value
