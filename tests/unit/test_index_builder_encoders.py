"""The builder's side of encoders, against a stand-in for Ray whose encoders die and answer as a test says."""

import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import HashEncoder

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.scale import encoders as module
from polyrank.index_builder.scale.encoders import Encoder, EncoderReport, Encoders, Maker
from polyrank.model.representations import Representations

MODEL = HashEncoder()
MAKER = Maker.of(MODEL)
QUANTISED = HashEncoder()
QUANTISED.precision, QUANTISED.rounding = "int8", "int8-ab"


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a long traceback\n{cause}")
        self.cause = cause


class ActorDied(RayError):
    actor_init_failed = False


class Ref:
    """An answer, or what is raised in its place."""

    def __init__(self, value: Any) -> None:
        self.value = value


EXCEPTIONS = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)


@dataclass
class FakeRay:
    """Answers at once, the oldest question first; `deaths` are kept for the calls of `encode` that they replace."""

    deaths: dict[int, Exception] = field(default_factory=dict)
    dead_on_begin: int = 0
    lost_vectors: set[int] = field(default_factory=set)
    maker: Maker = MAKER
    calls: list[tuple[int, int]] = field(default_factory=list)
    asked: deque[Ref] = field(default_factory=deque)
    killed: int = 0
    actors: int = 0

    @property
    def exceptions(self) -> Any:
        return EXCEPTIONS

    def remote(self, _kind: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._actor))

    def _actor(self, *_given: object) -> Any:
        self.actors += 1
        number = self.actors
        encode = SimpleNamespace(remote=lambda texts: self._encode(number, texts))
        return SimpleNamespace(
            begin=SimpleNamespace(remote=self._begin), encode=SimpleNamespace(options=lambda num_returns: encode)
        )

    def _begin(self) -> Ref:
        if self.dead_on_begin:
            self.dead_on_begin -= 1
            return self._ask(ActorDied("killed"))
        return self._ask(EncoderReport(self.maker, "host", "another processor"))

    def _encode(self, actor: int, texts: list[str]) -> tuple[Ref, Ref]:
        self.calls.append((actor, int(texts[0])))
        call = len(self.calls)
        made = MODEL.of(texts)
        vectors = Ref(ActorDied("its node is gone") if call in self.lost_vectors else made)
        return self._ask(self.deaths.get(call) or EncoderReport(self.maker, "host", "another processor")), vectors

    def _ask(self, value: object) -> Ref:
        self.asked.append(Ref(value))
        return self.asked[-1]

    def wait(self, refs: list[Ref], timeout: float) -> tuple[list[Ref], list[Ref]]:
        first = next(ref for ref in self.asked if ref in refs)
        self.asked.remove(first)
        return [first], []

    def get(self, ref: Ref) -> Any:
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def kill(self, _actor: object) -> None:
        self.killed += 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)


def chunks(count: int) -> list[ChunkTexts]:
    return [
        ChunkTexts(at * 2, [f"c{at}", f"d{at}"], [str(at), f"text {at}"], [at * 2, at * 2 + 1]) for at in range(count)
    ]


def run(ray: FakeRay, count: int = 8, encoders: int = 2) -> tuple[list[EncodedChunk], Encoders, list[str], list[int]]:
    told: list[str] = []
    done: list[int] = []
    source = Encoders(ray, MODEL, MODEL.name, "float16", encoders, told.append)
    return list(source(iter(chunks(count)), done.append)), source, told, done


def assert_all_made(made: list[EncodedChunk], count: int = 8) -> None:
    assert [each.chunk for each in made] == chunks(count)
    for each in made:
        np.testing.assert_array_equal(each.representations.first, MODEL.of(each.chunk.texts).first)


def test_chunks_come_in_order_and_are_encoded_once() -> None:
    ray = FakeRay()
    made, source, told, done = run(ray)
    assert_all_made(made)
    assert [chunk for _, chunk in ray.calls] == list(range(8))
    assert done == [2] * 8
    assert source.retries == 0
    assert told == ["host has another processor than this machine: vectors may differ in their last bits"]
    assert ray.killed == 2


def test_no_more_than_twice_as_many_chunks_as_encoders_are_read_ahead() -> None:
    read: list[int] = []

    def counted() -> Iterator[ChunkTexts]:
        for chunk in chunks(20):
            read.append(chunk.start)
            yield chunk

    for at, _ in enumerate(Encoders(FakeRay(), MODEL, MODEL.name, "float16", 3, print)(counted(), lambda _rows: None)):
        assert len(read) - at <= 6


def test_the_chunk_of_a_lost_encoder_goes_first_to_a_free_one() -> None:
    ray = FakeRay(deaths={3: ActorDied("killed\nmore")})
    made, source, told, done = run(ray, encoders=1)
    assert_all_made(made)
    assert [chunk for _, chunk in ray.calls] == [0, 1, 2, 2, 3, 4, 5, 6, 7]
    assert source.retries == 1
    assert told[1:] == ["the encoder on host was lost; 2 candidates from row 4 are encoded again"]
    assert sum(done) == 16


def test_another_encoder_takes_it_while_the_lost_one_begins() -> None:
    ray = FakeRay(deaths={1: ActorDied("killed")})
    assert_all_made(run(ray)[0])
    (first, zero), *_ = ray.calls
    assert next(actor for actor, chunk in ray.calls[1:] if chunk == zero) != first


def test_vectors_that_are_lost_before_their_turn_are_made_again() -> None:
    made, source, told, done = run(FakeRay(lost_vectors={2, 5}))
    assert_all_made(made)
    assert source.retries == 2
    assert sum("what was made was lost" in line for line in told) == 2
    assert sum(done) == 16, "rows are told once"


def test_a_chunk_that_ends_every_encoder_ends_the_build() -> None:
    ray = FakeRay(deaths={call: ActorDied("out of memory\nmore") for call in range(2, 20)})
    with pytest.raises(BuildError, match=r"^the chunk from row 2 has ended 5 encoders; the last: out of memory$"):
        run(ray, encoders=1)
    assert ray.killed == 1


def test_encoders_that_are_lost_before_they_begin_are_asked_again() -> None:
    ray = FakeRay(dead_on_begin=5)
    made, source, told, _ = run(ray)
    assert_all_made(made)
    assert source.retries == 0
    assert told[:5] == ["an encoder was lost before it had begun: killed"] * 5


def test_no_encoder_stays_alive() -> None:
    with pytest.raises(BuildError, match="no encoder stays alive; the last one: killed"):
        run(FakeRay(dead_on_begin=1000))


def test_an_encoder_that_cannot_be_started_ends_the_build() -> None:
    error = ActorDied("The actor died because of an error raised in its creation task\nImportError: no polyrank")
    error.actor_init_failed = True
    with pytest.raises(BuildError, match=r"^an encoder failed: ActorDied: ImportError: no polyrank$"):
        run(FakeRay(deaths={1: error}))


@pytest.mark.parametrize(("cause", "message"), [
    (BuildError("the encoder on host: no model"), "^the encoder on host: no model$"),
    (ZeroDivisionError("division by zero"), "^an encoder failed: ZeroDivisionError: division by zero$"),
])  # fmt: skip
def test_what_an_encoder_raises_ends_the_build(cause: Exception, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        run(FakeRay(deaths={2: RayTaskError(cause)}))


@pytest.mark.parametrize(("changes", "difference"), [
    ({"fingerprint": "ab"}, "fingerprint ab, not 0123456789abcdef"),
    ({"backend": "openvino", "precision": "bfloat16"}, "backend openvino, not none; precision bfloat16, not float32"),
    ({"precision": Maker.of(QUANTISED).precision}, "precision int8-ab, not float32"),
    ({"software": "torch 1.0"}, "software torch 1.0, not polyrank's model code"),
])  # fmt: skip
def test_vectors_by_another_model_or_software_are_refused(changes: dict[str, str], difference: str) -> None:
    with pytest.raises(
        BuildError, match=f"the encoder on host would make other vectors than this machine: {difference}"
    ):
        run(FakeRay(maker=MAKER._replace(**changes)))


def test_who_waits_for_a_processor_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAY_WHO_WAITS_AFTER_SECONDS", 0.0)
    _, _, told, _ = run(FakeRay(), encoders=5)
    assert [line for line in told if "have not begun" in line] == [
        "4 of 5 encoders have not begun; each waits for one of the cluster's 3 processors, or loads the model"
    ]


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    def load(*_given: object, **_options: object) -> HashEncoder:
        return MODEL

    monkeypatch.setattr(module.checkpoint, "load_retriever", load)
    return Encoder("hash", ("torch", "float32"), "float16")


def test_an_encoder_tells_what_it_is_and_rounds_what_it_makes(encoder: Encoder, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert encoder.begin().maker == MAKER
    done, made = encoder.encode(["a", "b"])
    assert (done.maker, done.truncated) == (MAKER, 0)
    assert isinstance(made, Representations)
    assert made.first.dtype == np.float16


def test_an_encoder_on_a_node_without_tokens_does_not_begin(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(
        BuildError, match=f"^the encoder on {socket.gethostname()}: .* start every node with RAY_AUTH_MODE"
    ):
        encoder.begin()
