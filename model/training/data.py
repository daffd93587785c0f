"""What training reads: an endless, shuffled, reproducible stream of rows, and the candidates of a batch.

A file of dialogues is read once to drop bad and repeated examples, and to hold some out for selection. What it holds
stays in memory if that is no more than the buffer that is drawn from. A larger file is read again for every pass.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.errors import TrainingDataInvalid
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import ConversationFinder, Conversations, context_key, identified
from polyrank.model.text.dialogues import REPEATS, RIGHT, SELECTION_SHARE, WRONG, Dialogue, Report, good_lines
from polyrank.model.text.folding import hash64, text_key

_LARGEST_SHARE = SELECTION_SHARE / 2  # a larger dialogue is trained on, so that two make no more than a tenth
_ASSISTANT = "assistant"  # the role of the side that replies, in OpenAI's messages
_CONTRADICTS = "another line gives these texts another class"
_PROGRESS_EVERY = 1000  # lines
SHUFFLE_BUFFER = 50_000  # examples held to draw from; a file of more is streamed

OnProgress = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is; None: nobody knows."""


def no_progress(_stage: str, _done: int, _total: int | None) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """One file of dialogues, read the same way every time."""

    path: Path
    every_turn: bool  # make an example of every reply in a dialogue, not of the last one alone
    weight: float  # how often a batch is taken from it, relative to other files
    conversations: Conversations = field(repr=False)  # of which dialogue each line is that is not bad
    held_out: NDArray[np.bool_] = field(repr=False)  # whether such a line is of the selection slice, (lines,)
    # Its examples, each with the place of its line; None: they are too many to keep.
    cached_examples: Sequence[tuple[int, Dialogue]] | None = field(default=None, repr=False)

    def examples(self, selection: bool = False) -> Iterator[Dialogue]:
        """Stream the examples to train on, or those of the selection slice, without bad and repeated ones."""
        for place, example in self._examples():
            if self.held_out[place] == selection:
                yield self.conversations.name(place, example)

    def replies(self) -> Iterator[str]:
        """Stream each distinct reply of the file: the pool that a server would answer from."""
        keys: set[int] = set()
        for _, example in self._examples():
            if (key := hash64(example.response.encode())) not in keys:
                keys.add(key)
                yield example.response

    def _examples(self) -> Iterable[tuple[int, Dialogue]]:
        if self.cached_examples is not None:
            return self.cached_examples
        report = Report()
        return _unique(good_lines(self.path, report), self.every_turn, report)


def survey(
    path: Path, every_turn: bool, max_rejected: float, held_out: int, on_progress: OnProgress = no_progress
) -> tuple[Corpus, Report]:
    """Read a file once: count and check its lines, and choose the dialogues to hold out.

    The choice depends on the dialogues alone, so every later reading makes the same one. A smaller slice is part of a
    larger one.

    Whole dialogues of about `held_out` examples are held out; of a small file a tenth, but at least two dialogues.
    `max_rejected` is the share of bad lines above which the file is refused. The corpus has the number of its examples
    as its weight. The stage is "reading FILE", of lines.

    Raises:
        DialoguesInvalid: the file cannot be read.
        TrainingDataInvalid: it has no examples, too many bad lines, or fewer than four dialogues.
    """
    report, finder, on_lines = Report(), ConversationFinder(), partial(on_progress, f"reading {path.name}")
    lines, listing = array("L"), array("b")  # of each example, the place of its line, and whether it lists negatives
    first_examples: list[tuple[int, Dialogue]] = []
    for place, example in _unique(_noted(good_lines(path, report), finder, on_lines), every_turn, report):
        if len(lines) < SHUFFLE_BUFFER:
            first_examples.append((place, example))
        lines.append(place)
        listing.append(bool(example.negatives))
        report.categories[example.category] += 1
        report.single_texts += example.is_single_text
    report.require_few_bad(path, max_rejected)
    conversations = finder.conversations()
    report.assumed = conversations.assumed()
    of_examples = conversations.keys[np.array(lines, np.int64)]
    sizes = dict(zip(*(column.tolist() for column in np.unique(of_examples, return_counts=True)), strict=True))
    if len(sizes) < 4:  # a dialogue alone has no negatives, so its loss is zero
        raise TrainingDataInvalid(f"{path}: {report}; training needs at least four dialogues, two of them to select by")
    chosen = _chosen(sizes, min(SELECTION_SHARE * report.examples, held_out))
    held_out_lines = np.isin(conversations.keys, np.array(chosen, np.uint64))
    apart = held_out_lines[np.array(lines, np.int64)]
    report.held_out = int(apart.sum())
    report.examples -= report.held_out
    report.with_negatives = int(np.array(listing, np.int64)[~apart].sum())
    is_whole = len(first_examples) == len(lines)
    cached = [(place, conversations.name(place, example)) for place, example in first_examples] if is_whole else None
    return Corpus(path, every_turn, float(report.examples), conversations, held_out_lines, cached), report


def hold_labels(paths: Iterable[Path]) -> bool:
    """Whether a file holds labels, by its first example: replies that were right or wrong, such as feedback tells."""
    firsts = (next((line for _, line in good_lines(path, Report())), None) for path in paths)
    return any(first is not None and _is_label(first) for first in firsts)


def read_labels(
    paths: Iterable[Path], max_rejected: float, on_survey: Callable[[Path, Report], None]
) -> tuple[list[Dialogue], Statistics]:
    """Read the labels of files, and count the words of all their replies.

    `max_rejected` is as in `survey`; `on_survey` is called with each file and what it holds.

    Raises:
        DialoguesInvalid: a file cannot be read.
        TrainingDataInvalid: it has too many bad lines, or classes other than `right` and `wrong`.
    """
    labels, replies = list[Dialogue](), dict[str, None]()
    for path in paths:
        report = Report()
        for number, line in good_lines(path, report):
            if line.category and not _is_label(line):
                raise TrainingDataInvalid(f"{path}:{number}: a label must be {RIGHT} or {WRONG}, beside a response")
            if line.category:
                labels.append(line)
            report.examples += 1
            replies.setdefault(line.response)
        report.require_few_bad(path, max_rejected)
        on_survey(path, report)
    return identified(labels)[0], Statistics.of(replies)


def _is_label(example: Dialogue) -> bool:
    return example.category in (RIGHT, WRONG) and not example.is_single_text


def _chosen(sizes: Mapping[int, int], most: float) -> list[int]:
    """Choose dialogues of at most so many examples in all, but at least two; the smallest ones where most are large.

    sizes: the examples of each dialogue by its hash. The order of the hashes decides, which says nothing of a dialogue.
    """
    largest = _LARGEST_SHARE * sum(sizes.values())
    order = sorted((key for key, size in sizes.items() if size <= largest), key=_bytes)
    totals = np.cumsum([sizes[key] for key in order])
    fitting = int(np.searchsorted(totals, most, side="right"))
    return order[: max(2, fitting)] if len(order) > 1 else sorted(sizes, key=lambda key: (sizes[key], _bytes(key)))[:2]


def _bytes(key: int) -> bytes:
    return key.to_bytes(8, "little")


def _noted(
    lines: Iterable[tuple[int, Dialogue]], finder: ConversationFinder, on_lines: Callable[[int, None], None]
) -> Iterator[tuple[int, Dialogue]]:
    for count, (number, line) in enumerate(lines):
        if count % _PROGRESS_EVERY == 0:
            on_lines(count, None)
        finder.add(line)
        yield number, line


def _unique(lines: Iterable[tuple[int, Dialogue]], every_turn: bool, report: Report) -> Iterator[tuple[int, Dialogue]]:
    """Yield the examples that are no repeats, each with the place of its line among `lines`."""
    keys: set[int] = set()
    for place, (number, line) in enumerate(lines):
        for example in _every_turn(line) if every_turn else (line,):
            key = hash64(repr((example.conversation, example.response)).encode())
            category_key = hash64(f"{key} {example.category}".encode()) if example.category else key
            if key in keys:
                report.drop(REPEATS if category_key in keys else _CONTRADICTS, number)
            else:
                keys |= {key, category_key}
                report.examples += 1
                gold = text_key(example.response)
                wrong = tuple(text for text in example.negatives if text_key(text) != gold)
                yield place, replace(example, negatives=wrong)


def _every_turn(dialogue: Dialogue) -> Iterator[Dialogue]:
    """Yield an example for each earlier turn of the replying side, then the dialogue.

    The turns are those of the assistant, where there is one; else every other one, from the end. Those that are marked
    as no right replies are left out. Candidates and negatives belong to the last reply alone.
    """
    turns = dialogue.conversation.turns
    assistants = [at for at, turn in enumerate(turns) if turn.role == _ASSISTANT]
    for at in assistants or range(len(turns) % 2, len(turns), 2):
        if at not in dialogue.no_replies and turns[at].text.strip() and any(turn.text.strip() for turn in turns[:at]):
            conversation = Conversation(turns[:at], dialogue.conversation.persona)
            yield Dialogue(conversation, turns[at].text, dialogue=dialogue.dialogue)
    yield dialogue


Take = Callable[[Iterator[Dialogue]], list[Dialogue]]
"""Takes the rows of one batch from a stream of examples."""


class Rows(NamedTuple):
    """Examples of one file for one batch.

    examples: the rows. others: examples whose replies alone are used, as further negatives of every row; they may also
    be rows of this or another batch.
    """

    examples: list[Dialogue]
    others: list[Dialogue]


def draw_rows(
    corpora: Sequence[Corpus],
    batch_size: int,
    seed: int,
    *,
    extra_replies: int = 0,
    rank: int = 0,
    n_ranks: int = 1,
    buffer: int = SHUFFLE_BUFFER,
    take: Take | None = None,
) -> Iterator[Rows]:
    """Draw the rows of one batch after another, without end; the same arguments give the same rows.

    A batch comes from one file, chosen by weight: replies of another domain would be negatives too easy to learn from.
    All processes of a run draw the same `n_ranks` batches of one file at a time, and each takes its own. So an epoch is
    one pass over the examples, however many processes share it.

    `extra_replies` is how many others join a batch. They are drawn apart from the rows, which remain a pass over the
    file. `rank` is the number of this process, from 0; `buffer`, how many examples are held to draw from. `take` takes
    the rows of a batch; None: the next `batch_size`.
    """
    take = take or (lambda stream: list(islice(stream, batch_size)))
    draw = random.Random(f"{seed}")
    streams = [
        (
            _shuffled(corpus, random.Random(f"{seed}-{at}"), buffer),
            _shuffled(corpus, random.Random(f"{seed}-{at}-others"), buffer),
        )
        for at, corpus in enumerate(corpora)
    ]
    weights = [corpus.weight for corpus in corpora]
    while True:
        [(rows, others)] = draw.choices(streams, weights)
        drawn = [(take(rows), list(islice(others, extra_replies))) for _ in range(n_ranks)]
        yield Rows(*drawn[rank])


def _shuffled(corpus: Corpus, draw: random.Random, buffer: int) -> Iterator[Dialogue]:
    """Yield examples without end, each drawn from a buffer that the file refills."""
    examples: list[Dialogue] = []
    while True:
        for example in corpus.examples():
            if len(examples) < buffer:
                examples.append(example)
                continue
            at = draw.randrange(buffer)
            examples[at], example = example, examples[at]
            yield example
        draw.shuffle(examples)
        yield from examples
        examples.clear()


class Columns(NamedTuple):
    """The N candidates of a batch, each distinct text once, and what they are to each row.

    gold: column of each row's gold reply, (B,). allowed: (B, N), False where the column is another correct reply of the
    row, which must not count as a negative. listed: (B, N), True for the row's gold reply and the negatives that its
    own example names.
    """

    texts: list[str]
    gold: Tensor
    allowed: Tensor
    listed: Tensor


def columns(examples: Sequence[Dialogue], others: Sequence[Dialogue], negatives: int, draw: random.Random) -> Columns:
    """Collect the gold reply and up to `negatives` listed negatives of each example, and the replies of `others`.

    Of more listed ones so many are drawn, so that in the course of a training all of them are met.

    Where two examples have the same context, the gold reply of one is no negative of the other.
    """
    listed_of = [_drawn(example.negatives, negatives, draw) for example in examples]
    texts: dict[int, str] = {}  # each distinct text as it was first written, by its key
    for text in chain(
        (example.response for example in examples),
        *listed_of,
        (other.response for other in others),
    ):
        texts.setdefault(text_key(text), text)
    place = {key: column for column, key in enumerate(texts)}
    gold = [place[text_key(example.response)] for example in examples]
    negative_columns = [[place[text_key(text)] for text in own] for own in listed_of]
    other_columns = [place[text_key(other.response)] for other in others]
    contexts = [context_key(example.conversation) for example in (*examples, *others)]
    allowed = torch.ones(len(examples), len(texts), dtype=torch.bool)
    listed = torch.zeros(len(examples), len(texts), dtype=torch.bool)
    correct: dict[int, set[int]] = {}
    for context, column in zip(contexts, gold + other_columns, strict=True):
        correct.setdefault(context, set()).add(column)
    for row, context in enumerate(contexts[: len(examples)]):
        for column in correct[context] - {gold[row]}:
            allowed[row, column] = False
        listed[row, [gold[row], *negative_columns[row]]] = True
    return Columns(list(texts.values()), torch.tensor(gold), allowed, listed & allowed)


def _drawn(negatives: Sequence[str], count: int, draw: random.Random) -> Sequence[str]:
    return negatives if len(negatives) <= count else draw.sample(negatives, count)


class WordsInLoss:
    """Evidence that counts while a network is trained; how rare a word is follows from the replies of all its files."""

    def __init__(self, evidence: LexicalScore, corpora: Sequence[Corpus]) -> None:
        """Read the files once; at least one."""
        self.evidence, self.late_weight = evidence.config, evidence.late_weight
        self._score = evidence
        first, *others = (Statistics.of(corpus.replies()) for corpus in corpora)
        for other in others:
            first = first.plus(other)
        self._statistics = first

    def values(self, conversation: Conversation, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the lexical scores of texts (N,), which are one list, as replies, (N,)."""
        table = WordTable.of(texts, self._statistics)
        return self._score.in_list(conversation, table).values(conversation, table)

    def rows(self, conversations: Iterable[Conversation], texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the lexical scores of texts (N,), which were drawn, as replies to each of B conversations, (B, N)."""
        table = WordTable.of(texts, self._statistics)
        return np.stack([self._score.values(each, table) for each in conversations])
