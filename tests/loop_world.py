"""A small world that is hidden from the product: what people ask, which replies are right, and how people behave.

A topic has a word that contexts name and another one that its right replies hold; all other words are noise. The live
model has learnt half of the topics. People look at a reply with a chance of one over its rank, and take some wrong
ones that they see, so what they take says as much about the rank as about the reply.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import httpx2
from command_line import write_rows

from polyrank.index_builder.store.generation_store import GenerationStore

TOPICS = 12
KNOWN = range(6)  # topics that the first model has learnt
REPLIES = 10  # of a topic, in the pool
SHOWN = 5
TAKES = {True: 0.9, False: 0.2}  # how often a person who looks at a reply takes it, by whether it is right
WRITES = 0.9  # of the agents who took none
WORDS = 40  # w0 to w39


class Asked(NamedTuple):
    """A message, and its topic, which only the world knows."""

    topic: int
    context: list[str]


class Taken(NamedTuple):
    """A reply that somebody took, and what was shown then, best first."""

    asked: Asked
    shown: list[str]
    text: str


class World:
    """All draws come from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._answers = list(range(TOPICS, 2 * TOPICS))
        self._draw.shuffle(self._answers)
        self.pool = sorted({self.reply(topic) for topic in range(TOPICS) for _ in range(REPLIES)})

    def _among_noise(self, word: int, noise: int) -> str:
        words = [f"w{self._draw.randrange(2 * TOPICS, WORDS)}" for _ in range(noise)]
        words.insert(self._draw.randrange(noise + 1), f"w{word}")
        return " ".join(words)

    def reply(self, topic: int) -> str:
        """A right one."""
        return self._among_noise(self._answers[topic], noise=2)

    def asked(self, topics: Sequence[int] = range(TOPICS)) -> Asked:
        """Somebody's message."""
        topic = self._draw.choice(topics)
        return Asked(topic, [self._among_noise(topic, noise=3)])

    def is_right(self, asked: Asked, reply: str) -> bool:
        """What the loop must never see."""
        return f"w{self._answers[asked.topic]}" in reply.split()

    def examples(self, count: int, topics: Sequence[int], name: str, others: int = 0) -> Iterator[dict[str, Any]]:
        """Dialogues with right replies; with wrong candidates of `others` other topics, if any."""
        for number in range(count):
            asked = self.asked(topics)
            row = {"context": asked.context, "response": self.reply(asked.topic), "dialogue": f"{name}{number}"}
            wrong = self._draw.sample([topic for topic in range(TOPICS) if topic != asked.topic], others)
            yield row | ({"candidates": [row["response"], *map(self.reply, wrong)]} if wrong else {})

    def write_pool(self, path: Path) -> Path:
        """A `.jsonl` file of all replies."""
        return write_rows(path, ({"id": f"r{number}", "text": text} for number, text in enumerate(self.pool)))

    def looks_at(self, asked: Asked, shown: Sequence[str]) -> str | None:
        """The reply that a person takes, if any."""
        for rank, text in enumerate(shown, 1):
            if self._draw.random() < 1 / rank and self._draw.random() < TAKES[self.is_right(asked, text)]:
                return text
        return None

    def writes(self, asked: Asked) -> str | None:
        """What an agent writes who took none, if anything."""
        return self.reply(asked.topic) if self._draw.random() < WRITES else None


class Server(NamedTuple):
    """Calls of a server that must succeed."""

    client: httpx2.Client

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ranked(self, asked: Asked, **fields: Any) -> Any:
        return self.post("/rank", {"context": asked.context, "top_k": SHOWN, **fields})


def use(world: World, server: Server, conversations: int) -> list[Taken]:
    """People ask, agents answer and say so; returns what was taken of what was shown."""
    taken, events = list[Taken](), list[dict[str, Any]]()
    questions = [world.asked() for _ in range(conversations)]
    with ThreadPoolExecutor(4) as callers:
        answers = list(
            callers.map(lambda at: server.ranked(questions[at], conversation=f"chat {at}"), range(conversations))
        )
    for number, (asked, answer) in enumerate(zip(questions, answers, strict=True)):
        texts = [each["text"] for each in answer["results"]]
        event = {"ranking_id": answer["ranking_id"], "event_id": f"event {number}"}
        if (text := world.looks_at(asked, texts)) is not None:
            taken.append(Taken(asked, texts, text))
            events.append({**event, "kind": "chosen", "id": answer["results"][texts.index(text)]["id"]})
        elif (text := world.writes(asked)) is not None:
            events.append({**event, "kind": "written", "text": text})
        else:
            events.append({**event, "kind": "none_good"})
    for at in range(0, len(events), 100):
        assert server.post("/feedback", {"events": events[at : at + 100]})["accepted"] == len(events[at : at + 100])
    return taken


@contextmanager
def in_the_canary(world: World, server: Server, store: Path) -> Iterator[None]:
    """While a generation is on trial people ask, and are handed over who see no right reply at the top."""
    over = Event()

    def ask() -> None:
        generations, calls = GenerationStore(store), 0
        while not over.wait(0.0 if generations.trial() is not None else 0.1):
            for asked in [world.asked() for _ in range(20)]:
                calls += 1
                answer = server.ranked(asked, conversation=f"later chat {calls}")
                if not world.is_right(asked, answer["results"][0]["text"]):
                    event = {"ranking_id": answer["ranking_id"], "kind": "handed_over", "event_id": "end"}
                    server.post("/feedback", {"events": [event]})

    with ThreadPoolExecutor(1) as people:
        asking = people.submit(ask)
        try:
            yield
        finally:
            over.set()
            asking.result()


def relevance(world: World, server: Server, questions: Sequence[Asked]) -> float:
    """The share of messages whose first reply is right; asked so that the log does not keep it."""
    first = [server.ranked(asked, log=False)["results"][0]["text"] for asked in questions]
    right = [world.is_right(asked, text) for asked, text in zip(questions, first, strict=True)]
    return sum(right) / len(right)


def clicks(taken: Sequence[Taken], path: Path, shown: bool) -> Path:
    """A `.jsonl` file of what was taken, to learn from, or to judge by among what was `shown`."""
    with path.open("w") as out:
        for number, each in enumerate(taken):
            row = {"context": each.asked.context, "response": each.text, "dialogue": f"click {number}"}
            out.write(json.dumps(row | ({"candidates": each.shown} if shown else {})) + "\n")
    return path
