"""Messages in OpenAI's shape, as its SDK dumps them: what in them is text.

A message is an object of `role` and `content`. `content` is a text, a list of parts, or null where the assistant only
calls a tool. Texts are read, of every role: instructions (`system`, `developer`) and outputs of tools are turns like
any other. Images, sounds, files and calls of tools are skipped.
"""

from collections.abc import Mapping
from typing import Any, Final

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Turn

# Of a part, by its type: the field that holds its text. Parts of other types have none.
TEXT_FIELDS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def text_of(content: Any) -> str:
    """Return the text in the `content` of a message, "" where there is none; parts stand on lines of their own.

    Raises:
        InvalidInput: it is no text, null, or list of parts.

    >>> text_of([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}, "it"])
    'see\\nit'
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidInput("must be a string, a list of parts, or null")
    texts = [_text_of_part(part, at) for at, part in enumerate(content)]
    return "\n".join(text for text in texts if text is not None)


def turn_of(message: Mapping[str, Any]) -> Turn:
    """Return what a message says and who says it; where the assistant refused to answer, its `refusal` is the text.

    Raises:
        InvalidInput: see `text_of`; or its role or refusal is no string.

    >>> turn_of({"role": "assistant", "content": None, "refusal": "I cannot do that."})
    Turn(text='I cannot do that.', role='assistant')
    """
    for name in ("role", "refusal"):
        if not isinstance(message.get(name), str | None):
            raise InvalidInput(f"{name}: must be a string or null")
    try:
        text = text_of(message.get("content"))
    except InvalidInput as error:
        raise InvalidInput(f"content: {error}") from None
    return Turn(text or message.get("refusal") or "", message.get("role"))


def _text_of_part(part: Any, at: int) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidInput(f"part {at} must be a string or an object")
    field = TEXT_FIELDS.get(str(part.get("type") or "text"))
    if field is None:
        return None
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidInput(f"part {at}: {field} must be a string")
    return text
