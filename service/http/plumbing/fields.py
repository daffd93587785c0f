"""Types that the bodies of requests and answers are made of, for all routes."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, WithJsonSchema

from polyrank.index_builder.pool.limits import check_value


class Out(BaseModel):
    """An answer, or a part of one: it holds what is listed and nothing else."""

    model_config = ConfigDict(extra="forbid")


def _not_blank(text: str) -> str:
    if not text or text.isspace():
        raise ValueError("must not be empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank), WithJsonSchema({"type": "string", "pattern": r"\S"})]


def storable(value: JsonValue) -> JsonValue:
    """Return the value if JSON and a store keep it as it is; errors as `check_value`."""
    check_value(value)
    return value
