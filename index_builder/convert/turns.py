"""From what was said to examples: who answers, and one example for each of their replies."""

import re
import string
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

from polyrank.index_builder.pool.documents import MAX_TEXT_CHARACTERS, RowError
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import folded

USER, ASSISTANT, SYSTEM, TOOL = "user", "assistant", "system", "tool"
_NAMES = {
    USER: "human customer client visitor guest end_user requester inbound incoming in contact prompter asker buyer",
    ASSISTANT: "gpt chatgpt bing bard claude model bot chatbot ai agent support operator staff admin representative rep"
    " advisor outbound outgoing out seller",
    SYSTEM: "developer",
    TOOL: "function observation function_call function_response tool_call tool_response",
}
_ROLES = {name: role for role, names in _NAMES.items() for name in (role, *names.split())}
_BETWEEN_WORDS = re.compile(rf"[\s{re.escape(string.punctuation)}]+")  # not \W: vowels of Thai and Hindi are marks
# Of one context. No model reads as much, and a channel in which thousands speak is one conversation.
MOST_TURNS, MOST_CHARACTERS = 1000, 1_000_000


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """Return a name as names are compared: `Created At` and `createdAt` are `created_at`."""
    return _BETWEEN_WORDS.sub("_", folded(re.sub(r"([a-z])([A-Z])", r"\1_\2", name))).strip("_")


def role_called(name: object) -> str | None:
    """Return the role that a tool calls so: user, assistant, system or tool; any other name stays; None: no name."""
    if name is None or name == "":
        return None
    return _ROLES.get(plain_name(str(name)), str(name))


def is_role(name: object) -> bool:
    """Whether it is the name of a role, as `human` is."""
    return isinstance(name, str) and plain_name(name) in _ROLES


def with_sides(turns: Sequence[Turn], answering: Collection[str]) -> list[Turn]:
    """Return the turns with polyrank's roles instead of the names that the file gives; `assistant` is who answers.

    `answering` holds the plain names of the side that answers. Without it, the names tell: the assistant; or, where a
    user speaks with others, the others, such as `system`; or, where no name tells it, all but who speaks first.
    """
    called = {turn.role: role_called(turn.role) for turn in turns}
    if answering:
        ours: set[str | None] = {name for name in called if name and plain_name(name) in answering}
        called = {name: name if role == ASSISTANT else role for name, role in called.items()}
    elif ASSISTANT in called.values() or not any(called):
        ours = set()
    elif USER in called.values():
        ours = {name for name, role in called.items() if role not in (None, USER, SYSTEM, TOOL)}
        ours = ours or {name for name, role in called.items() if role == SYSTEM}
    else:
        spoken = (turn for turn in turns if turn.text or turn.role)  # else an internal note
        first = next((turn.role for turn in spoken if called[turn.role] != SYSTEM), None)
        ours = {name for name, role in called.items() if role not in (None, SYSTEM, TOOL) and name != first}
        called[first] = USER
    called |= dict.fromkeys(ours, ASSISTANT)
    return [Turn(turn.text, called[turn.role]) for turn in turns]


def examples_of(
    turns: Iterable[Turn], name: str, persona: Sequence[str] = (), unwanted: Collection[int] = ()
) -> Iterator[Dialogue | RowError]:
    """Yield an example for each reply of the assistant; without roles for every other turn, from the last one back.

    A reply that cannot be learnt from gives a RowError in its place. `unwanted` are the places of turns that are read,
    but not to be learnt.
    """
    stripped = [Turn(turn.text.strip(), turn.role) for turn in turns]
    said = [(at, turn) for at, turn in enumerate(stripped) if turn.text or turn.role == ASSISTANT]
    has_roles = any(turn.role for _, turn in said)
    context: deque[Turn] = deque(maxlen=MOST_TURNS)
    characters, found = 0, False
    for place, (at, turn) in enumerate(said):
        if turn.role == ASSISTANT if has_roles else place and (len(said) - place) % 2:
            found = True
            yield _example(turn.text, context, name, persona) if at not in unwanted else RowError("a reply of weight 0")
        if turn.text:
            if len(context) == MOST_TURNS:
                characters -= len(context[0].text)
            context.append(turn)
            characters += len(turn.text)
            while characters > MOST_CHARACTERS and len(context) > 1:
                characters -= len(context.popleft().text)
    if not found:
        yield RowError("no reply: nobody of the side that answers speaks")


def _example(text: str, context: Iterable[Turn], name: str, persona: Sequence[str]) -> Dialogue | RowError:
    if why := why_no_reply(text):
        return RowError(why)
    if not any(turn.role not in (SYSTEM, ASSISTANT) for turn in context):
        return RowError("a reply with nothing said before it")
    return Dialogue(Conversation(tuple(context), tuple(persona)), text, dialogue=name)


def why_no_reply(text: str) -> str | None:
    """Return why a text is no reply that a pool can hold; None: it is one."""
    if not text.strip():
        return "a reply without text"
    if len(text) > MAX_TEXT_CHARACTERS:
        return f"a reply of more than {MAX_TEXT_CHARACTERS} characters"
    return None
