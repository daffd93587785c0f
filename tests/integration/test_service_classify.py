"""POST /classify over real classifiers: what it tells, beside what else, and what it refuses."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from in_process import TestClient
from served import serve
from service_fakes import build_store, load
from tiny import write_checkpoint

import polyrank
from polyrank.model.errors import WrongKind
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.load import load_classifier
from polyrank.model.registry import classifiers
from polyrank.model.text.assembly import Turn
from polyrank.service.api.answers import ClassifyOut
from polyrank.service.app import create_app
from polyrank.service.http.operations import InfoOut
from polyrank.service.settings import Settings

LABELS = ("maybe", "no", "yes")
TEXTS = ["w3 w4", "w1 w2 w5 " * 20, "w9", "w3 w4"]


def write_classifier(parent: Path, architecture: str, **more: Any) -> Path:
    return write_checkpoint(parent, architecture, 3, **{"architecture": architecture, "labels": LABELS, **more})


def settings(**given: Any) -> Settings:
    return Settings(threads=1, backend="torch", precision="float32", **given)


@pytest.fixture(scope="module", params=classifiers())
def served(request, tmp_path_factory) -> Iterator[tuple[TestClient, Classifier]]:
    """A server without a store, and its classifier as it is loaded alone."""
    path = write_classifier(tmp_path_factory.mktemp("classify"), request.param)
    with TestClient(create_app(settings(classifier=str(path)))) as client:
        yield client, load_classifier(path)


@pytest.fixture(scope="module", params=classifiers())
def of_texts(request, tmp_path_factory) -> Iterator[tuple[TestClient, Classifier]]:
    """The same of single texts: the names of the classes are what the model scores as replies."""
    parent = tmp_path_factory.mktemp("texts")
    path = write_classifier(parent, request.param, labels=("w1", "w2 w3", "w4 w5 w6"), class_from="score")
    with TestClient(create_app(settings(classifier=str(path)))) as client:
        yield client, load_classifier(path)


@pytest.fixture(scope="module")
def bi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("bi"), "bi")


def told(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/classify", json=body)
    assert answer.status_code == 200, answer.text
    ClassifyOut.model_validate(answer.json())
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def test_it_tells_what_the_classifier_tells(served: tuple[TestClient, Classifier]) -> None:
    client, classifier = served
    sent = [{"role": "user", "content": "w1 w2"}, "w7"]
    results = told(client, context=sent, texts=TEXTS, persona=["w8"])
    expected = classifier.classify([Turn("w1 w2", "user"), "w7"], TEXTS, persona=["w8"])
    for result, own in zip(results, expected, strict=True):
        assert result["probabilities"] == pytest.approx(own, abs=1e-5)
        assert list(result["probabilities"]) == sorted(own, key=lambda name: -result["probabilities"][name])
        assert result["label"] == next(iter(result["probabilities"]))
        assert result["probability"] == result["probabilities"][result["label"]]
    assert results[0]["probabilities"] == pytest.approx(results[3]["probabilities"])


def test_many_texts_are_compared_part_by_part(served: tuple[TestClient, Classifier], monkeypatch) -> None:
    client, classifier = served
    whole = classifier.classify("w1 w2", TEXTS)
    sizes, compared = list[int](), classifier.network.class_logits
    monkeypatch.setattr("polyrank.service.ranking.unranked.AT_ONCE", 3)
    monkeypatch.setattr("polyrank.model.inference.network_states._AT_ONCE", 2)
    for result, alone, own in zip(
        told(client, context="w1 w2", texts=TEXTS), classifier.classify("w1 w2", TEXTS), whole, strict=True
    ):
        assert result["probabilities"] == pytest.approx(own, abs=1e-5)
        assert alone == pytest.approx(own, abs=1e-5)
    if not classifier.network.retrieves:
        return
    held = client.app.state.resources.runtime.classifier
    monkeypatch.setattr(held.network, "class_logits", lambda *sent: sizes.append(len(sent[1].first)) or compared(*sent))
    told(client, context="w1 w2", texts=TEXTS)
    assert sizes == [3, 1]


def test_many_at_once_get_what_each_would_get_alone(served: tuple[TestClient, Classifier]) -> None:
    client, classifier = served
    bodies = [{"context": f"w{n}", "texts": [f"w{n % 5} w{n}", "w2"]} for n in range(12)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda body: told(client, **body), bodies))
    for body, results in zip(bodies, answers, strict=True):
        for result, own in zip(results, classifier.classify(body["context"], body["texts"]), strict=True):
            assert result["probabilities"] == pytest.approx(own, abs=1e-4)


def test_single_texts_are_told_alone_and_as_the_last_turn(of_texts: tuple[TestClient, Classifier]) -> None:
    client, classifier = of_texts
    said = [{"role": "user", "content": "w1 w2"}, "w7"]
    alone, beside = told(client, texts=TEXTS), told(client, texts=TEXTS, context=said, persona=["w8"])
    for results, expected in (
        (alone, classifier.classify("", TEXTS)),
        (beside, classifier.classify([Turn("w1 w2", "user"), "w7"], TEXTS, persona=["w8"])),
    ):
        for result, own in zip(results, expected, strict=True):
            assert result["probabilities"] == pytest.approx(own, abs=1e-5)
            assert result["label"] == next(iter(own))
    assert alone != beside
    cut = client.post("/classify", json={"texts": ["w3", "w1 " * 200]}).json()["truncated"]
    assert cut["tokens"] > 0
    assert client.get("/info").json()["labels"] == ["w1", "w2 w3", "w4 w5 w6"]
    refused = client.post("/classify", json={"context": [" "], "texts": ["w1"]})
    assert (refused.status_code, "at least one turn must have text" in refused.text) == (422, True)


def test_it_says_what_it_is_and_what_it_cut(served: tuple[TestClient, Classifier]) -> None:
    client, classifier = served
    assert client.get("/readyz").status_code == 200
    info = client.get("/info").json()
    InfoOut.model_validate(info)
    assert (info["model"], info["reranker"], info["generation"]) == (None, None, None)
    assert info["labels"] == list(LABELS)
    assert info["classifier"]["fingerprint"] == classifier.fingerprint
    shown = {"role": "classifier", "fingerprint": classifier.fingerprint}
    line = next(each for each in client.get("/metrics").text.splitlines() if each.startswith("polyrank_model_info"))
    assert all(f'{name}="{value}"' in line for name, value in shown.items())
    answer = client.post("/classify", json={"context": "w1 " * 200, "texts": TEXTS}).json()
    assert answer["model"] == {
        "name": classifier.name,
        "architecture": classifier.config.architecture,
        "fingerprint": classifier.fingerprint,
    }
    assert answer["truncated"]["candidates"] == 1
    assert answer["timings_ms"]["total"] > 0


@pytest.mark.parametrize(("body", "says"), [
    ({"texts": ["w1"]}, "context: is required"),
    ({"context": " ", "texts": ["w1"]}, "context: at least one turn must have text"),
    ({"context": "w1", "texts": "w1"}, "texts"),
    ({"context": "w1", "text": ["w1"]}, "text: unknown field; did you mean texts?"),
    ({"context": "w1", "texts": ["w" * 500]}, "texts"),
])  # fmt: skip
def test_wrong_requests_get_one_clear_message(bi: Path, body: dict[str, Any], says: str) -> None:
    with TestClient(create_app(settings(classifier=str(bi), max_text_chars=400))) as client:
        answer = client.post("/classify", json=body)
    assert answer.status_code == 422, answer.text
    assert says in answer.text


def test_bounds_and_deadlines_hold(bi: Path) -> None:
    with TestClient(create_app(settings(classifier=str(bi), max_candidates=3))) as client:
        assert client.post("/classify", json={"context": "w1", "texts": ["w1"] * 4}).status_code == 413
        late = client.post("/classify", json={"context": "w1", "texts": ["w1 w2"] * 3, "timeout_ms": 1})
        assert late.status_code in (200, 503, 504)
        assert told(client, context="w1", texts=["w1"])


def test_a_result_that_is_no_number_is_no_answer(bi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(create_app(settings(classifier=str(bi)))) as client:
        network = client.app.state.resources.runtime.classifier.network
        monkeypatch.setattr(type(network), "class_logits", lambda *_: np.full((1, 3), np.nan, np.float32))
        answer = client.post("/classify", json={"context": "w1", "texts": ["w1"]})
        assert answer.status_code == 500
        assert "the model gave something" not in answer.text  # the log says it
        monkeypatch.undo()
        assert told(client, context="w1", texts=["w1"])


def test_a_server_without_one_says_how_to_get_one(tmp_path: Path) -> None:
    build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        answer = client.post("/classify", json={"context": "w1", "texts": ["w1"]})
        assert answer.status_code == 422
        assert "no classifier is loaded; start the server with --classifier MODEL" in answer.text
        assert client.get("/info").json()["classifier"] is None


def test_it_ranks_and_classifies_beside_each_other(bi: Path, tmp_path: Path) -> None:
    build_store(tmp_path)
    with TestClient(create_app(settings(store=tmp_path, classifier=str(bi)), load)) as client:
        assert client.post("/rank", json={"context": "w1"}).status_code == 200
        assert len(told(client, context="w1", texts=TEXTS)) == len(TEXTS)
    with TestClient(create_app(settings(classifier=str(bi)))) as client:
        for path, body in (("/rank", {"context": "w1"}), ("/v2/rerank", {"query": "w1", "documents": ["w1"]})):
            refused = client.post(path, json=body)
            assert refused.status_code == 503
            assert "start it with --store" in refused.text


def test_a_model_that_ranks_is_refused(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(checkpoints / "poly")
    outcome = call(capsys, "serve", "--classifier", model)
    assert outcome.status == 2
    assert "classifier: " in outcome.err
    assert "which tells no classes; give a checkpoint of polyrank train --task classify" in outcome.err
    with pytest.raises(WrongKind), TestClient(create_app(settings(classifier=model))):
        pass


def test_the_clients_ask_it(bi: Path) -> None:
    with serve(create_app(settings(classifier=str(bi)))) as server, polyrank.Client(server.url) as client:
        answer = client.classify(["w1", {"role": "user", "text": "w2"}], TEXTS, timeout_ms=20_000)
        [expected, *_] = load_classifier(bi).classify(["w1", Turn("w2", "user")], TEXTS)
        assert answer.results[0].label == next(iter(expected))
        assert answer.results[0].probabilities == pytest.approx(expected, abs=1e-4)
        with pytest.raises(polyrank.RequestWrong):
            client.classify("w1", [])
        with pytest.raises(polyrank.RequestWrong, match="context: is required"):
            client.classify("", ["w1"])
