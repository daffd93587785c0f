"""Rows that hold a whole conversation, or a question and its answer, as those write them who train chat models.

{"messages": [{"role", "content"}]}                        OpenAI's form
{"conversations": [{"from", "value"}], "system": "…"}      ShareGPT's; both under many other names
{"items": [{"user": "…", "assistant": "…"}]}               both sides in one object, or in a pair: [["…", "…"]]
{"dialog": ["…", "…"]}                                     texts in turn
{"turns": {"speaker": […], "utterance": […]}}              a list of messages, field by field
{"prompt", "completion"}, {"instruction", "input", "output"}, {"question", "answer"}
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson

from polyrank.index_builder.convert.turns import (
    ASSISTANT,
    SYSTEM,
    USER,
    examples_of,
    is_role,
    plain_name,
    with_sides,
    words,
)
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Turn
from polyrank.model.text.dialogues import Dialogue, text_of

Object = Mapping[str, Any]

_LISTS = words("""messages conversations conversation items dialog dialogue dialogs turns utterances chat chat_history
    history data""")
IDS = words("""conversation_id conversation conv_id dialogue_id dialog_id dialogue dialog ticket_id ticket ticket_number
    ticket_no case_id case_number case chat_id chat thread_id thread session_id session issue_id request_id""")
ROLES = words("""role from sender_type author_type sender_role author_role user_type speaker_role direction inbound
    incoming outbound outgoing is_agent from_agent is_customer speaker sender author from_name sender_name author_name
    participant sent_by speaker_idx author_id sender_id speaker_id type name""")
TEXTS = words("""content value text utterance message message_text message_body body body_text plain_body comment
    comment_body msg""")
_QUESTIONS = words("prompt instruction question query user human input problem")
_ANSWERS = words("completion response output answer assistant gpt reply solution")
_THEIRS, _OURS = ("inbound", "incoming", "is_customer"), ("outbound", "outgoing", "is_agent", "from_agent")
_YES, _NO = words("true 1 1_0 yes t y"), words("false 0 0_0 no f n")  # 1.0 of pandas, where others are missing
_PUBLIC = words("public is_public jsd_public is_published")
_INTERNAL = words("private is_private internal is_internal internal_note is_internal_note is_note")
_KINDS = words("part_type message_type comment_type type")
_NOTES = words("note internal_note private_note note_and_reopen")


def field_of(row: Object, names: Sequence[str]) -> str | None:
    """Return the first of some plain names that a row has, as the row spells it; None: it has none of them."""
    spelt = {plain_name(name): name for name in row if row[name] is not None}
    return next((spelt[name] for name in names if name in spelt), None)


def side(name: str, value: object) -> str | None:
    """Return who speaks, by the field that says it and its value: `inbound` is true for a user."""
    kind = plain_name(name)
    if kind in _THEIRS or kind in _OURS:
        return USER if (plain_name(str(value)) in _YES) == (kind in _THEIRS) else ASSISTANT
    return None if value is None else str(value).strip()


def is_internal(message: Object) -> bool:
    """Whether those who answer wrote it for each other, as helpdesks mark it: no customer may read it."""

    def said(names: Sequence[str], values: Collection[str]) -> bool:
        name = field_of(message, names)
        return name is not None and plain_name(str(message[name])) in values

    return said(_PUBLIC, _NO) or said(_INTERNAL, _YES) or said(_KINDS, _NOTES)


def list_of(row: Object) -> str | None:
    """Return the field of a row that holds the messages of a conversation; None: it has none."""
    fields = (field_of(row, (name,)) for name in _LISTS)
    return next((field for field in fields if field and _is_listed(_parsed(row[field]))), None)


def _is_listed(value: object) -> bool:
    """Whether it is a list of messages, or an object with a list for each of their fields."""
    values = list(value.values()) if isinstance(value, dict) else [value]
    return any(isinstance(each, list) for each in values)


def pair_of(row: Object) -> tuple[str, str] | None:
    """Return the fields of a row that hold a question and its answer; None: it has none."""
    question, answer = field_of(row, _QUESTIONS), field_of(row, _ANSWERS)
    return (question, answer) if question and answer else None


def examples(row: Object, name: str, answering: Collection[str]) -> Iterator[Dialogue | RowError]:
    """Yield the examples of a row, and a RowError for each reply that is left out.

    `name` is that of the conversation, where the row has none. `answering`: see `with_sides`.

    Raises RowError where the row holds no conversation.
    """
    given = field_of(row, [*IDS, "uuid", "id"])
    name = str(row[given]) if given and isinstance(row[given], str | int) else name
    system = [Turn(_text(row["system"]), SYSTEM)] if row.get("system") else []
    weightless: set[int] = set()
    if listed := list_of(row):
        turns = _turns(_parsed(row[listed]))
        places = enumerate(row[listed], len(system)) if isinstance(row[listed], list) else ()
        weightless = {at for at, message in places if isinstance(message, dict) and message.get("weight") == 0}
    elif pair := pair_of(row):
        parts = [_text(row[pair[0]]), _text(row.get("input")) if plain_name(pair[0]) == "instruction" else ""]
        turns = [Turn("\n".join(filter(None, parts)), USER), Turn(_text(row[pair[1]]), ASSISTANT)]
    else:
        fields = ", ".join(repr(name[:30]) for name in [*row][:8])
        raise RowError(f"there are neither messages nor a question and its answer, but {fields or 'nothing'}")
    yield from examples_of(with_sides(system + turns, answering), name, unwanted=weightless)


def _parsed(value: object) -> object:
    """Return the list that a cell of a table may hold as JSON."""
    if isinstance(value, str) and value.startswith("["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _turns(value: object) -> list[Turn]:
    if isinstance(value, dict):
        lists = {name: cells for name, cells in value.items() if isinstance(cells, list)}
        value = [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=False)]
    assert isinstance(value, list)  # as `list_of` found
    return [turn for message in value for turn in _said(message)]


def _said(message: object) -> Iterator[Turn]:
    if isinstance(message, str | None):
        yield Turn(message or "")
    elif isinstance(message, list):
        yield from (Turn(_text(text), role) for role, text in zip((USER, ASSISTANT), message, strict=False))
    elif not isinstance(message, dict):
        raise RowError("a message is neither a text nor an object")
    elif is_internal(message):
        yield Turn("")  # which keeps its place
    else:
        text = field_of(message, TEXTS)
        of = field_of({name: value for name, value in message.items() if name != text}, ROLES)
        if text is of is None:  # both sides in one object
            yield from (Turn(_text(message[name]), name) for name in message if is_role(name))
            return
        said = _text(message[text]) if text else ""
        yield Turn(said or _text(message.get("refusal")), None if of is None else side(of, message[of]))


def _text(content: object) -> str:
    try:
        return text_of(content)
    except InvalidInput as error:
        raise RowError(f"the content of a message {error}") from None
