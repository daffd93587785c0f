"""What a log of feedback teaches, as files that `polyrank train` and `polyrank evaluate` read.

    DIR/train.jsonl   replies to train on: first those that people wrote or edited, then those that they chose. What
                      stood above a chosen one is a weak negative; what was disliked is one, and all where none was good
    DIR/later.jsonl   replies to judge by, of the newest fifth of the conversations: written and edited ones alone. One
                      that was chosen from the list of one model says nothing fair of another
    DIR/labels.jsonl  each first reply of the newest fifth, `right` or `wrong`: what a calibration is fitted on

None of these conversations trains, and no context of later.jsonl or of a golden set does. Equal logs and stores give
equal bytes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from polyrank.model.durable import filling
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.conversations import Positives, context_key, turns_key
from polyrank.model.text.dialogues import RIGHT, WRONG, Dialogue, new_dialogues, read_dialogues
from polyrank.model.text.folding import text_key
from polyrank.service.feedback.outcomes import Outcome, Sent, outcome_of
from polyrank.service.feedback.reading import uses
from polyrank.service.feedback.recording import newest
from polyrank.service.feedback.records import MOST_SHOWN, Shown, Use
from polyrank.service.feedback.redaction import Redaction
from polyrank.service.feedback.replies import Replies

TRAIN, LATER, LABELS = "train.jsonl", "later.jsonl", "labels.jsonl"
LATER_SHARE: Final = 5  # one conversation in so many
MOST_OF_REPLY, MOST_OF_CONVERSATION = 50, 5  # chosen ones

_REDACTION = Redaction()
_SETTING = "polyrank serve --feedback texts records them"
_IN_GOLDEN = "examples whose context is in a golden set"
_TRAINS = "examples of the newest conversations whose context is more frequent before, where it trains"
_CHOSEN_LATER = f"chosen replies of the newest conversations: they judge no model, and do not train beside {LATER}"


@dataclass(slots=True)
class Exported:
    """What was kept, and what was left out and why.

    Attributes:
        rankings: how many the log holds.
        with_feedback: how many of them have events.
        files: examples of each file, by how their reply came about; labels by `right` and `wrong`.
        left_out: examples, labels and negatives by reason.
    """

    rankings: int = 0
    with_feedback: int = 0
    files: dict[str, Counter[str]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


class _Example(NamedTuple):
    """A reply that was right for a context, and how that is known; or a label."""

    kind: str
    dialogue: Dialogue


class _Read(NamedTuple):
    """What a ranking teaches.

    Attributes:
        conversation: its digest, or the ranking's id.
        said: hash of the turns; persona does not count, so that no set is told from another by it.
        label: of the first reply; None: nobody knows whether it was right.
    """

    at: float
    ranking: str
    conversation: str
    said: int
    examples: list[_Example]
    label: Dialogue | None


def export(root: Path, output: Path, *, golden: Sequence[Path] = ()) -> Exported:
    """Write the files; `root` is the directory of the store, `output` a new or empty one, `golden` are dialogues.

    Raises:
        InvalidInput: no ranking was recorded, or none with texts; or a golden set cannot be read.
        OSError: the files cannot be written; `output` holds something at the end (FileExistsError).
    """
    done = Exported()
    kept_apart = {said for path in golden for example in read_dialogues(path) for said in _forms(example.conversation)}
    read = sorted(_read(root, done), key=lambda each: (each.at, each.ranking))
    kept_back = _newest_conversations(read)
    before, recent = ([each for each in read if (each.conversation in kept_back) is new] for new in (False, True))
    before = _apart(before, kept_apart, _IN_GOLDEN, done)
    # A context of both sides stays on one, where it is more frequent: what everybody asks shall train.
    often, of_later = (Counter(each.said for each in some) for some in (before, recent))
    later = _apart(recent, {said for said, count in often.items() if count > of_later[said]}, _TRAINS, done)
    before = _apart(before, {each.said for each in later}, f"examples whose context is kept for {LATER}", done)
    judges = [each for each in _examples_of(later) if not _is_chosen(each)]
    done.left_out[_CHOSEN_LATER] += len(_examples_of(later)) - len(judges)
    kept = {
        TRAIN: _with_negatives(_capped(_examples_of(before), done), read),
        LATER: [_Example(kind, replace(dialogue, negatives=())) for kind, dialogue in judges],
        LABELS: [_Example(each.label.category, each.label) for each in recent if each.label is not None],
    }
    done.left_out = +done.left_out  # without those that count 0
    with filling(output, TRAIN) as inside:
        for name, examples in kept.items():
            done.files[name] = Counter(each.kind for each in examples)
            with new_dialogues(inside / name) as write:
                for each in examples:
                    write(each.dialogue)
    return done


def _forms(conversation: Conversation) -> tuple[int, int]:
    """Return the hash of a context, and that of its turns as they are recorded."""
    redacted = (Turn(_REDACTION.end(turn.text), turn.role) for turn in newest(conversation).turns)
    return turns_key(conversation), turns_key(Conversation(tuple(redacted)))


def _read(root: Path, done: Exported) -> Iterator[_Read]:
    replies, with_texts = Replies(root), False
    for use in uses(root):
        done.rankings += 1
        done.with_feedback += bool(use.events)
        with_texts = with_texts or use.ranking.said is not None
        if not use.events:
            continue
        said = use.ranking.said
        if said is None or not any(turn.text.strip() for turn in said.turns):  # a function of the operator took all
            done.left_out["rankings that were recorded without texts"] += 1
            continue
        taught = _taught(use, said, replies, done)
        if taught.examples or taught.label is not None:
            yield taught
    if not done.rankings:
        raise InvalidInput(f"{root} has no recorded rankings; {_SETTING}")
    if not with_texts:
        raise InvalidInput(f"the {done.rankings} rankings recorded in {root} are without texts; {_SETTING}")


def _taught(use: Use, said: Conversation, replies: Replies, done: Exported) -> _Read:
    ranking, outcome = use.ranking, outcome_of(use)
    name = ranking.conversation or ranking.id
    texts = list(_right(use, outcome, replies, done))
    negatives = _negatives(use, outcome, replies, done) if texts else ()
    examples = [_Example(kind, Dialogue(said, text, negatives=negatives, dialogue=name)) for kind, text in texts]
    label = None
    if ranking.shown and (is_right := outcome.first_is_right(ranking.shown[0])) is not None:
        [first] = replies.find(ranking, ranking.shown[:1])
        if first is None:
            done.left_out["first replies whose text is in no generation any more"] += 1
        elif first.text.strip():
            label = Dialogue(said, first.text, dialogue=name, category=RIGHT if is_right else WRONG)
    return _Read(ranking.at, ranking.id, name, turns_key(said), examples, label)


def _right(use: Use, outcome: Outcome, replies: Replies, done: Exported) -> Iterator[tuple[Sent, str]]:
    """Yield the reply that was sent; where nothing says what was sent, those that were liked."""
    shown = use.ranking.shown
    if outcome.kind in ("written", "edited") and outcome.text and outcome.text.strip():
        yield outcome.kind, outcome.text
        return
    liked: Sequence[Shown] = ()
    if outcome.kind is None:
        liked = [each for each in shown if each.id in outcome.up]
    elif outcome.kind != "chosen":
        return
    elif outcome.reply in outcome.down:
        done.left_out["replies that were chosen and then disliked"] += 1
    elif outcome.rank:
        liked = [shown[outcome.rank - 1]]
    elif outcome.text is None and any(each.text is not None for each in shown):
        # It was sent along, so a reply of the generation that has its id may be another one.
        done.left_out[f"right replies that were sent along and stood below rank {MOST_SHOWN}"] += 1
    else:
        liked = [Shown(outcome.reply, 0.0, outcome.text)]
    for found in replies.find(use.ranking, liked):
        if found is None:
            done.left_out["right replies whose text is in no generation any more"] += 1
        elif found.text.strip():  # a log may hold anything
            yield "chosen", found.text


def _negatives(use: Use, outcome: Outcome, replies: Replies, done: Exported) -> tuple[str, ...]:
    """Return the texts of what stood above the reply that was sent, of what was disliked, or of all if none was good.

    A reply that was liked is none, nor one that was sent or edited.
    """
    wrong = [
        each
        for rank, each in enumerate(use.ranking.shown, 1)
        if rank != outcome.rank
        and each.id not in outcome.up
        and (each.id in outcome.down or rank < (outcome.rank or 0) or (outcome.kind == "written" and outcome.none_good))
    ]
    found = replies.find(use.ranking, wrong)
    done.left_out["wrong replies whose text is in no generation any more"] += found.count(None)
    return tuple(each.text for each in found if each is not None)


def _newest_conversations(read: Sequence[_Read]) -> Collection[str]:
    """Choose the newest conversations by their last ranking, so that nothing that trains is newer than all of one."""
    last = {each.conversation: (each.at, each.ranking) for each in read}  # in the order of time
    newest = sorted(last, key=last.__getitem__, reverse=True)
    return set(newest[: len(newest) // LATER_SHARE])


def _examples_of(read: Iterable[_Read]) -> list[_Example]:
    return [example for each in read for example in each.examples]


def _apart(read: Sequence[_Read], said: Collection[int], why: str, done: Exported) -> list[_Read]:
    """Leave out what was taught in contexts that are kept apart."""
    kept = [each for each in read if each.said not in said]
    done.left_out[why] += len(_examples_of(read)) - len(_examples_of(kept))
    return kept


def _capped(examples: Sequence[_Example], done: Exported) -> list[_Example]:
    """Put written and edited replies first, and leave out repeats and what would outweigh the rest; newer ones stay."""
    kept, seen = list[_Example](), set[tuple[int, int]]()
    of_reply, of_conversation = Counter[int](), Counter[str]()
    for each in sorted(reversed(examples), key=_is_chosen):
        reply, conversation = text_key(each.dialogue.response), each.dialogue.dialogue
        key = context_key(each.dialogue.conversation), reply
        if key in seen:
            done.left_out["examples that repeat another one"] += 1
        elif _is_chosen(each) and of_reply[reply] == MOST_OF_REPLY:
            done.left_out[f"chosen replies beyond {MOST_OF_REPLY} of the same text"] += 1
        elif _is_chosen(each) and of_conversation[conversation] == MOST_OF_CONVERSATION:
            done.left_out[f"chosen replies beyond {MOST_OF_CONVERSATION} of a conversation"] += 1
        else:
            kept.append(each)
            seen.add(key)
            of_reply[reply] += _is_chosen(each)
            of_conversation[conversation] += _is_chosen(each)
    return sorted(reversed(kept), key=_is_chosen)


def _is_chosen(example: _Example) -> bool:
    return example.kind == "chosen"


def _with_negatives(examples: Iterable[_Example], read: Iterable[_Read]) -> list[_Example]:
    """Leave out negatives that were right for the same context elsewhere."""
    right, found = Positives(example.dialogue for example in _examples_of(read)), list[_Example]()
    for kind, dialogue in examples:
        known = right.of(dialogue.conversation)
        kept = tuple(text for text in dialogue.negatives if text_key(text) not in known)
        found.append(_Example(kind, replace(dialogue, negatives=kept)))
    return found
