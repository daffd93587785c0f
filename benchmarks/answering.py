"""How well a model's best score tells whether a pool has an answer at all.

    python -m benchmarks.answering --model CHECKPOINT --desks FILE [FILE ...] [--unanswered FILE ...]
        [--replies 300] [--questions 60] [--seed 0]

Each file of `--desks` holds the dialogues of one desk. Its pool has `--replies` replies; questions whose reply is in it
have an answer. Questions of the other desks have none, nor have those of `--unanswered` (dialogues, or lines with
`text`), if their reply is not in the pool. Prints, for each desk, how often the first reply is right, and how many
questions of either kind are answered at `answer_if` 0.5; and over all desks the area under the curve by which the best
score, its distance to the second and its distance to the mean tell the two kinds apart, and how many questions with an
answer are answered where one in ten without is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics, normalised
from polyrank.model.rankers.load import load_late
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import DialoguesInvalid, drawn, read_dialogues
from polyrank.model.text.jsonlines import read_objects
from polyrank.service.ranking.selection import line_of, relevance


class Question(NamedTuple):
    """What is asked, and the form of its reply."""

    conversation: Conversation
    reply: str


def asked(path: Path, most: int, draw: Random) -> list[Question]:
    """Draw questions of a file of dialogues."""
    examples = drawn(read_dialogues(path), most, draw)
    return [Question(each.conversation, each.response) for each in examples]


def unanswered(path: Path) -> list[Question]:
    """Read texts that no pool answers."""
    rows = (row for _, row in read_objects(path, DialoguesInvalid) if isinstance(row, dict))
    return [Question(Conversation.of(row["text"] if "text" in row else row["context"]), "") for row in rows]


def facts(model: Path, texts: Sequence[str], questions: Sequence[Question]) -> tuple[NDArray[np.float64], list[bool]]:
    """Return best score, its distance to the second and to the mean, (Q, 3), and whether the first reply is right."""
    ranker = load_late(model)
    made = ranker.represent_candidates(ranker.tokenize_candidates(list(texts))[0])
    table = WordTable.of(texts, Statistics.of(texts))
    found, right = [], []
    for question, reply in questions:
        [context] = ranker.represent_contexts([ranker.tokenize_context(question)[0]])
        additions = None if ranker.evidence is None else ranker.evidence.additions(question, table)
        scores = ranker.scores(context, made, additions)
        second, best = np.sort(scores)[-2:]
        found.append((best, best - second, best - scores.mean()))
        right.append(normalised(texts[int(scores.argmax())]) == normalised(reply))
    return np.array(found, np.float64).reshape(-1, 3), right


def area(values: NDArray[np.float64], answered: NDArray[np.bool_]) -> float:
    """Return the chance that a question with an answer has the higher value."""
    yes, no = values[answered], values[~answered]
    return float(np.mean([(each > no).mean() + (each == no).mean() / 2 for each in yes]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--desks", type=Path, nargs="+", required=True)
    parser.add_argument("--unanswered", type=Path, nargs="*", default=[])
    parser.add_argument("--replies", type=int, default=300)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = Random(arguments.seed)
    desks = {path: asked(path, arguments.replies, draw) for path in arguments.desks}
    strange = [question for path in arguments.unanswered for question in unanswered(path)]
    line = line_of(load_late(arguments.model))
    every: list[tuple[NDArray[np.float64], NDArray[np.bool_]]] = []
    print("| desk | replies | first is right | answered, of those with an answer | of those without |")
    for path, own in desks.items():
        texts = list(dict.fromkeys(each.reply for each in own))
        known = set(map(normalised, texts))
        others = [each for other, some in desks.items() if other != path for each in some] + strange
        none = [each for each in others if normalised(each.reply) not in known]
        questions = own[: arguments.questions], draw.sample(none, min(arguments.questions, len(none)))
        (with_answer, right), (without, _) = (facts(arguments.model, texts, some) for some in questions)
        shares = [
            float((relevance(each[:, 0].astype(np.float32), line) >= 0.5).mean()) for each in (with_answer, without)
        ]
        figures = [str(len(texts)), *(f"{share:.2f}" for share in (np.mean(right), *shares))]
        print("|", " | ".join([f"{path.parent.name}/{path.stem}", *figures]), "|")
        has = np.repeat([True, False], [len(with_answer), len(without)])
        every.append((np.concatenate([with_answer, without]), has))
    values, has = (np.concatenate(column) for column in zip(*every, strict=True))
    for name, column in zip(("best score", "distance to the second", "distance to the mean"), values.T, strict=True):
        bound = np.quantile(column[~has], 0.9)
        print(
            f"{name}: area {area(column, has):.3f}; answered {np.mean(column[has] > bound):.2f} where 0.10 without are"
        )


if __name__ == "__main__":
    main()
