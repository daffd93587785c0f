"""Two published forms of dialogues with candidates: ParlAI's text files, as of ConvAI2, and the Ubuntu Dialogue Corpus.

A file of ParlAI has a turn and its answer a line, with tabs between: `3 hi .<TAB>hello !<TAB><TAB>a|b|hello !`. The
number counts the lines of a conversation. Facts are lines of their own: `1 your persona: i like tea .` The newer form
names its fields: `text:hi<TAB>labels:hello|hey<TAB>label_candidates:…<TAB>episode_done:True`.

A row of the Ubuntu Dialogue Corpus has a context, with `__eot__` after each turn and `__eou__` after each utterance
(version 1: `__EOS__`), and either an utterance and whether it follows, or the one that does and `Distractor_0` to `_8`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from polyrank.index_builder.convert.messages import Object, field_of
from polyrank.index_builder.convert.turns import MOST_TURNS, plain_name, why_no_reply
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue

_LINE = re.compile(r"(\d+) (.*)", re.DOTALL)
_PERSONA, _NOT_SAID = "your persona:", ("partner's persona:", "__SILENCE__")
_CONTEXTS, _REPLIES = ("context",), ("ground_truth_utterance", "utterance", "response")
_LABELS = ("label", "flag")
_TURN_END, _UTTERANCE_END = re.compile(r"__eot__|__EOS__|</s>"), re.compile(r"\s*__eou__\s*")


def is_parlai(line: str) -> bool:
    """Whether a file whose first line this is may be of ParlAI."""
    return line.startswith("1 ") or (line.startswith("text:") and "\t" in line)


def parlai_examples(lines: Iterable[str], name: str) -> Iterator[tuple[int, Dialogue | RowError]]:
    """Yield the examples of a file of ParlAI with the numbers of their lines; `name` begins those of conversations."""
    episode, is_over = 0, True
    persona: list[str] = []
    said: list[Turn] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = _parlai_fields(line.strip("\r\n"))
        if fields is None:
            yield number, RowError("the line is not ParlAI's: it has neither a number nor a field text:")
            continue
        text, replies, candidates, begins, ends = fields
        if begins or is_over:
            episode, persona, said = episode + 1, [], []
        is_over = ends
        for each in text.split("\n"):
            if each.startswith(_PERSONA):
                persona.append(each.removeprefix(_PERSONA).strip())
            elif each.strip() and not each.startswith(_NOT_SAID):
                said.append(Turn(each.strip()))
        conversation = Conversation(tuple(said[-MOST_TURNS:]), tuple(persona))
        for reply in replies:
            yield number, _ranked(conversation, reply, candidates, f"{name}:{episode}")
        said += map(Turn, replies[:1])


def _parlai_fields(line: str) -> tuple[str, list[str], list[str], bool, bool] | None:
    """Return the text of a line, its replies, its candidates, and whether it begins and ends a conversation."""
    if line.startswith("text:"):
        named = dict(cell.split(":", 1) for cell in line.split("\t") if ":" in cell)
        replies = named.get("labels") or named.get("eval_labels") or ""
        ends = named.get("episode_done") == "True"
        return _meant(named["text"]), _split(replies), _split(named.get("label_candidates", "")), False, ends
    if (found := _LINE.fullmatch(line)) is None:
        return None
    text, replies, _, candidates = [*found[2].split("\t"), "", "", ""][:4]
    return _meant(text), _split(replies), _split(candidates), found[1] == "1", False


def _split(cell: str) -> list[str]:
    return [_meant(text).strip() for text in cell.split("|") if text.strip()]


def _meant(text: str) -> str:
    """Put in what ParlAI writes otherwise, because its lines cannot hold it."""
    return text.replace("\\n", "\n").replace("\\t", "\t").replace("__PIPE__", "|")


def is_ubuntu(row: Object) -> bool:
    """Whether a row may be of the Ubuntu Dialogue Corpus."""
    judged = field_of(row, (*_LABELS, "distractor_0"))
    return bool(judged and field_of(row, _CONTEXTS) and field_of(row, _REPLIES))


def ubuntu_example(row: Object) -> Dialogue | RowError:
    """Return the example of a row; a RowError where the utterance is a wrong one."""
    if not is_ubuntu(row):
        return RowError("the row lacks Context, Utterance and Label, or Ground Truth Utterance and Distractor_0")
    context, reply, label = (row.get(field_of(row, names) or "") for names in (_CONTEXTS, _REPLIES, _LABELS))
    if label is not None and str(label).strip() not in ("1", "1.0"):
        return RowError("the utterance does not follow: its label is not 1")
    turns = tuple(Turn(text) for part in _TURN_END.split(str(context)) if (text := _joined(part)))
    wrong = [_joined(str(row[name])) for name in row if plain_name(name).startswith("distractor")]
    return _ranked(
        Conversation(turns[-MOST_TURNS:]), _joined(_TURN_END.sub("", str(reply))), [*filter(None, wrong)], ""
    )


def _joined(part: str) -> str:
    return _UTTERANCE_END.sub(" ", part).strip()


def _ranked(conversation: Conversation, reply: str, candidates: Sequence[str], name: str) -> Dialogue | RowError:
    if why := why_no_reply(reply):
        return RowError(why)
    if not conversation.turns:
        return RowError("a reply with nothing said before it")
    listed = [*candidates] if reply in candidates or not candidates else [reply, *candidates]
    return Dialogue(conversation, reply, tuple(listed), listed.index(reply) if listed else -1, dialogue=name)
