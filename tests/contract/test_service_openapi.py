"""The API's description: kept in the repository, and true."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from service_fakes import words_app

from polyrank import __version__
from polyrank.service.http.compat import rerank, served_models
from polyrank.service.http.plumbing import openapi, problems

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT = REPOSITORY / "docs" / "openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi.describe(words_app(Path("nowhere")))


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{method.upper()} {path}": each for path, at in document["paths"].items() for method, each in at.items()}


def test_the_description_in_the_repository_is_this_one(document: dict[str, Any]) -> None:
    assert json.loads(KEPT.read_text(encoding="utf-8")) == document, "it has changed; run: make docs"


def test_its_operations_are_known_without_it(document: dict[str, Any]) -> None:
    app = words_app(Path("nowhere"))
    listed = [(path, method.upper()) for path, at in document["paths"].items() for method in at]
    assert sorted(openapi.operations(app)) == sorted(listed)


COMPATIBLE = {
    "RerankErrorOut": {"/rerank", "/v1/rerank", "/v2/rerank"},
    "OpenAiErrorOut": {"/v1/embeddings", "/embeddings", "/v1/models", "/models"},
    "TeiErrorOut": {"/", "/embed", "/similarity", "/tokenize"},
    "AnyErrorOut": {"/v1/embed", "/v2/embed"},
}


def test_errors_of_compatible_routes_are_of_their_form(document: dict[str, Any]) -> None:
    assert {path for paths in COMPATIBLE.values() for path in paths} == set(rerank.OF_PATH)
    for form, paths in COMPATIBLE.items():
        for path in paths:
            answers = [operation["responses"] for operation in document["paths"][path].values()]
            told = [(code, answer) for each in answers for code, answer in each.items() if code >= "400"]
            assert [code for code, _ in told].count("500") == len(answers)
            for code, answer in told:
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith(f"/{form}"), f"{path} {code}"
                assert answer["description"].strip(" /"), f"{path} {code}"


def test_every_other_error_is_a_problem(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        if name.split()[1] in rerank.OF_PATH:
            continue
        told = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        assert "500" in told, name
        for status, answer in told.items():
            assert list(answer["content"]) == [problems.MEDIA_TYPE], f"{name} {status}"
            assert answer["description"].strip(" /"), f"{name} {status}"
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_what_needs_a_key_says_so_and_how_it_refuses(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    open_paths = {"/livez", "/healthz", "/readyz", "/health", "/ping", "/v2/health/live", "/v2/health/ready"}
    for name, operation in operations(document).items():
        refusals = {"401", "403", "429"} & set(operation["responses"])
        if name == "GET /" or name.split()[1] in open_paths:
            assert ("security" in operation, refusals) == (False, set()), name
        else:
            assert operation["security"] == [{scheme: []} for scheme in schemes], name
            assert refusals == {"401", "403", "429"}, name


BUSY = "Too many requests are waiting"


def test_errors_are_told_where_they_can_happen(document: dict[str, Any]) -> None:
    told = {
        name: {status: answer["description"].split(" / ") for status, answer in each["responses"].items()}
        for name, each in operations(document).items()
    }
    for name, answers in told.items():
        path, is_compatible = name.split()[1], name.split()[1] in rerank.OF_PATH
        updates = {"PUT /index/candidates", "POST /index/candidates/delete"}
        works = name in {"POST /rank", "POST /explain", "POST /classify", "POST /feedback", *updates} or (
            is_compatible and "504" in answers
        )
        busy = {status for status, titles in answers.items() if BUSY in titles}
        assert busy == ({"429" if is_compatible else "503"} if works else set()), name
        keys_idempotent = any("Idempotency-Key" in title for titles in answers.values() for title in titles)
        assert keys_idempotent == (name == "POST /index"), name
        assert ("The server is about to stop" in answers.get("503", [])) == (
            path in {"/readyz", "/health", "/ping", "/v2/health/ready"}
        ), name
    assert told["POST /v1/rerank"]["404"] == ["No such model"]
    assert told["GET /index/jobs/{job_id}"]["404"] == ["No such job"]
    assert told["GET /v1/models"]["429"] == told["GET /info"]["429"] == ["Too many calls"]


def test_answers_headers_are_described(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        for status, answer in operation["responses"].items():
            assert "X-Request-ID" in answer["headers"], f"{name} {status}"
    own = served_models.headers_of(SimpleNamespace(state=SimpleNamespace(arrived=0.0)), {}, 0, "f", "g")
    for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/v1/embeddings", "/embeddings", "/embed", "/similarity"):
        described = document["paths"][path]["post"]["responses"]["200"]["headers"]
        assert set(described) == {*own, "X-Request-ID"}, path


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    wanted = {piece.split('"')[0] for piece in text.split('"#/components/schemas/')[1:]}
    assert wanted <= set(document["components"]["schemas"])


def test_what_is_not_offered_is_not_described(document: dict[str, Any]) -> None:
    assert "explain" not in document["components"]["schemas"]["RankIn"]["properties"]
    assert document["components"]["schemas"]["RankIn"]["additionalProperties"] is False


def test_the_version_is_the_packages() -> None:
    import tomllib

    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"] == __version__
