"""Who is let in, and what those are told who are not."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tiny import write_checkpoint

from polyrank.model.rankers.load import load_classifier
from polyrank.model.registry import DeformerConfig
from polyrank.model.text.assembly import Conversation
from polyrank.service.errors import DeadlineExceeded, Overloaded
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.costs import class_tokens
from polyrank.service.scheduling.admission import MOST_RETRY_SECONDS, TOKENS_A_REQUEST, Admission
from polyrank.service.scheduling.stages import Journey

TURN = 100_000


class House:
    """An admission with a clock of its own, whose requests are done when they leave."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.now, self.done_tokens = 100.0, 0
        self.metrics = Metrics()
        self.admission = Admission(most, TURN, self.metrics, self, lambda: self.now)

    def work(self, tokens: int, seconds: float) -> None:
        """One request alone."""
        with self.admission.admitted(Journey(), tokens):
            self.now += seconds
            self.done_tokens += tokens

    def fail(self, tokens: int, seconds: float) -> None:
        """One request that comes to nothing."""
        with suppress(ValueError), self.admission.admitted(Journey(), tokens):
            self.now += seconds
            raise ValueError("no")

    def refusal(self, tokens: int = 10, within: float = math.inf) -> Overloaded | None:
        try:
            with self.admission.admitted(Journey(self.now + within), tokens):
                return None
        except Overloaded as error:
            return error

    def learn(self, tokens: int, seconds: float) -> None:
        for _ in range(50):
            self.work(tokens, seconds)


@pytest.fixture
def house() -> House:
    return House()


def test_the_house_is_full_at_its_tokens_and_empties_again() -> None:
    house = House(1000)
    with ExitStack() as inside:
        inside.enter_context(house.admission.admitted(Journey(), 600))
        inside.enter_context(house.admission.admitted(Journey(), 600))
        assert house.refusal() is not None
        assert house.metrics.registry.get_sample_value("polyrank_queue_tokens") == 1200
        assert house.metrics.registry.get_sample_value("polyrank_queue_depth") == 2
    assert house.refusal() is None
    assert house.metrics.registry.get_sample_value("polyrank_queue_depth") == 0


def test_one_that_is_larger_than_the_house_is_let_in_alone() -> None:
    house = House(1000)
    with house.admission.admitted(Journey(), 50_000):
        assert house.refusal() is not None


def test_one_that_is_inside_searches_again_where_there_is_room(house: House) -> None:
    house.learn(10_000, 1.0)
    own = Journey(house.now + 3.0)
    with house.admission.admitted(own, 1000):
        assert house.admission.searches_again(own, 20_000), "alone it may take all its time"
        assert house.admission.tokens == 21_000
        assert house.metrics.registry.get_sample_value("polyrank_queue_tokens") == 21_000
        with house.admission.admitted(Journey(), 10_000):
            assert not house.admission.searches_again(own, 10_000)
            assert house.admission.searches_again(own, 1000)
            assert house.refusal(tokens=10_000, within=5.0) is not None, "others see what it adds"
    assert house.admission.tokens == 0


def test_one_that_is_inside_does_not_search_again_in_a_full_house() -> None:
    house = House(1000)
    own = Journey()
    with house.admission.admitted(own, 100):
        with house.admission.admitted(Journey(), 2000):
            assert not house.admission.searches_again(own, 10)
        assert house.admission.searches_again(own, 5000)


def test_a_wait_beyond_the_time_allowed_is_refused_at_once_and_told(house: House) -> None:
    house.learn(10_000, 1.0)
    with house.admission.admitted(Journey(), 50_000):
        refused = house.refusal(within=4.0)
        assert refused.retry_after_seconds == 5  # some 4.5 s of work: the last second counts for more
        assert house.refusal(within=10.0) is None
    assert house.refusal(within=0.1) is None, "nobody is before it"


def test_a_few_short_requests_say_little_about_long_ones(house: House) -> None:
    house.work(70, 0.1)
    with house.admission.admitted(Journey(), 15_000):
        assert house.refusal(within=10.0) is None


def test_idle_time_does_not_count_and_speed_is_relearnt(house: House) -> None:
    house.learn(10_000, 1.0)
    house.now += 10_000
    with house.admission.admitted(Journey(), 40_000):
        assert house.refusal(within=10.0) is None
    for _ in range(40):
        house.learn(10_000, 0.01)
    with house.admission.admitted(Journey(), 40_000):
        assert house.refusal(within=0.2) is None


def test_requests_side_by_side_are_as_fast_as_they_are_together(house: House) -> None:
    """Ten at a time in one second are ten times as fast as one by one."""
    for _ in range(50):
        with ExitStack() as inside:
            for _ in range(10):
                inside.enter_context(house.admission.admitted(Journey(), 1000))
            house.now += 1.0
            house.done_tokens += 10_000
    with house.admission.admitted(Journey(), 10_000):
        assert house.refusal(within=1.6) is not None
        assert house.refusal(within=2.4) is None


def test_one_long_request_does_not_shut_the_door_on_short_ones() -> None:
    house = House()
    house.learn(10_000, 1.0)
    with house.admission.admitted(Journey(), 20 * TURN):
        for second in range(100):
            assert house.refusal(within=25.0) is None, second
            house.now += 1.0
            house.done_tokens += 10_000
        refused = house.refusal(tokens=2 * TURN, within=25.0)
        assert refused is not None, "but on another long one"
        assert 17 <= refused.retry_after_seconds <= 21, "which has to wait for as much as it asks for itself"


def test_long_requests_do_not_pile_up() -> None:
    house = House(2 * TURN)
    with house.admission.admitted(Journey(), 3 * TURN):
        assert house.refusal(tokens=10) is None
        assert house.refusal(tokens=TURN + 1) is not None


def test_a_request_of_known_texts_is_not_refused_for_their_lengths(house: House) -> None:
    house.learn(10_000, 1.0)
    with house.admission.admitted(Journey(), 1000):
        assert house.refusal(tokens=15_000, within=1.0) is not None
        assert house.refusal(tokens=200, within=1.0) is None


def test_what_failed_has_done_no_work(house: House) -> None:
    house.learn(10_000, 1.0)
    for _ in range(200):
        house.fail(10_000, 1.0)
    with house.admission.admitted(Journey(), 10_000):
        refused = house.refusal(within=5.0)
        assert 10 < refused.retry_after_seconds <= MOST_RETRY_SECONDS


def test_one_whose_time_is_over_is_not_let_in(house: House) -> None:
    with pytest.raises(DeadlineExceeded), house.admission.admitted(Journey(house.now), 1):
        pass


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_the_wall_clock_has_no_say(house: House, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    real: Callable[[], float] = time.time
    house.learn(10_000, 1.0)
    monkeypatch.setattr("time.time", lambda: real() + step)
    with house.admission.admitted(Journey(), 10_000):
        assert house.refusal(within=10.0) is None


def test_classes_are_priced_by_what_is_read_and_compared(tmp_path: Path) -> None:
    labels = ("w1", "w2 w3", "w4 w5 w6")

    def price(name: str, said: str = "", **fields: Any) -> int:
        path = write_checkpoint(tmp_path, name, 0, labels=labels, **fields)
        conversation = Conversation.of(said) if said else Conversation(())
        return class_tokens(load_classifier(path), conversation, ["w1 w2 w3 w4"] * 10) - TOKENS_A_REQUEST

    said = "w1 " * 40  # 30 tokens, as admission estimates them; a text has 4
    apart = price("bi", said, architecture="bi")
    assert apart == 30 + 10 * 4
    upper = price("deformer", said, architecture="deformer", own=DeformerConfig(upper=2))
    assert upper > 3 * apart, "all layers read a context with each text"
    assert price("cross", said, architecture="cross") == 10 * 30 + 10 * 4
    by_score: dict[str, Any] = {"class_from": "score"}
    assert price("bi-texts", architecture="bi", **by_score) == 10 * 2
    assert price("cross-texts", architecture="cross", **by_score) == 10 * (2 * 3 + 9)
