"""Types that the bodies of requests and answers are made of, for all routes."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.fields import Field
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

# For types of which the largest stands first: pydantic copies what does not fit one, and no other thread goes on.
IN_ORDER = Field(union_mode="left_to_right")


class In(BaseModel):
    """A request, or a part of one. Null means the same as an absent field: clients of C#, Java and Go send it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if all(field.is_required() or field.get_default() is None for field in cls.model_fields.values()):
            return schema  # null is what an absent field holds; a call for each candidate would take its time
        return no_info_before_validator_function(cls._without_nulls, schema)

    @classmethod
    def _without_nulls(cls, sent: Any) -> Any:
        if not isinstance(sent, dict) or None not in sent.values():
            return sent
        return {name: value for name, value in sent.items() if value is not None or name not in cls.model_fields}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        fields = handler.resolve_ref_schema(described)
        for name, field in fields.get("properties", {}).items():
            if name not in fields.get("required", ()) and not _takes_null(field):
                told = {key: field.pop(key) for key in ("default", "description", "examples", "title") if key in field}
                fields["properties"][name] = {"anyOf": [field, {"type": "null"}], **told}
        return described


def _takes_null(field: JsonSchemaValue) -> bool:
    kinds = field.get("anyOf", [field])
    return {"type": "null"} in kinds or not {"type", "$ref", "enum", "const", "oneOf", "anyOf"} & set(field)


class Out(BaseModel):
    """An answer, or a part of one: it holds what is listed and nothing else."""

    model_config = ConfigDict(extra="forbid")


def _not_blank(text: str) -> str:
    if not text or text.isspace():
        raise ValueError("must not be empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank), WithJsonSchema({"type": "string", "pattern": r"\S"})]
