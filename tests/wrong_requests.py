"""Wrong requests, and what is wrong with them: the cases behind wrong-requests.txt."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class WrongRequest(NamedTuple):
    """A request, and the mistake in it; `body` is JSON text where it is a string."""

    mistake: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})


def _rank(mistake: str, **fields: Any) -> WrongRequest:
    return WrongRequest(mistake, "POST", "/rank", {"context": "where is my parcel?", **fields})


def _put(mistake: str, body: Any) -> WrongRequest:
    return WrongRequest(mistake, "PUT", "/index/candidates", body)


CASES = [
    _rank("a misspelt field", topk=5),
    _rank("another system's name of a field", limit=5),
    _rank("a field that nothing here is like", colour="red"),
    WrongRequest("the context under another name", "POST", "/rank", {"messages": ["where is my parcel?"]}),
    WrongRequest("no context", "POST", "/rank", {"top_k": 5}),
    WrongRequest("a context that is a number", "POST", "/rank", {"context": 5}),
    WrongRequest("a context without text", "POST", "/rank", {"context": ["", " "]}),
    WrongRequest("a turn without text", "POST", "/rank", {"context": [{"role": "user"}]}),
    WrongRequest("a turn with a misspelt field", "POST", "/rank", {"context": [{"role": "user", "contnt": "hi"}]}),
    WrongRequest(
        "a message with an image",
        "POST",
        "/rank",
        {"context": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]},
    ),
    _rank("a number as a string", top_k="5"),
    _rank("a number with a point", top_k=2.5),
    _rank("a number too large", top_k=5000),
    _rank("a number too small", top_k=0),
    _rank("two mistakes", top_k=0, retrieve_k="all"),
    _rank("a switch as a string", rerank="yes"),
    _rank("a misspelt field one level down", rerank={"topn": 20}),
    _rank("reranking without a reranker", rerank=True),
    _rank("candidates that are no list", candidates={"id": "c1"}),
    _rank("no candidates", candidates=[]),
    _rank("a candidate that is a number", candidates=["a reply", 5]),
    _rank("a candidate without anything", candidates=[{}]),
    _rank("a candidate with a misspelt field", candidates=[{"ID": "c1"}]),
    _rank("a candidate without letters", candidates=[" "]),
    _rank("candidates that nobody knows", candidates=[{"id": "nobody"}]),
    _rank("more candidates than the server takes", candidates=["a reply"] * 21),
    _rank("a filter beside candidates", candidates=["a reply"], filter={"lang": "en"}),
    _rank("a filter that is a list", filter=["lang", "en"]),
    _rank("an operator that filters lack", filter={"price": {"$gt": 5}}),
    _rank("bounds of different kinds", filter={"price": {"gte": 5, "lt": "10"}}),
    _rank("a limit for groups without groups", limit_per_group=2),
    _rank("a text too long", candidates=["parcel " * 500]),
    _rank("a revision that does not come", min_revision=99),
    _rank("another model than is served", expect={"fingerprint": "0123abcd"}),
    _rank("another generation than is served", expect={"generation": "yesterday"}),
    WrongRequest("an infinite threshold", "POST", "/rank", '{"context": "hi", "score_threshold": 1e999}'),
    _rank("a probability in per cent", answer_if=80),
    _rank("a decision by a model that is not calibrated", answer_if=0.8),
    WrongRequest("single quotes", "POST", "/rank", "{'context': 'hi'}"),
    WrongRequest("a comma too many", "POST", "/rank", '{"context": "hi",}'),
    WrongRequest("half a body", "POST", "/rank", '{"context": "hi"'),
    WrongRequest("a list instead of an object", "POST", "/rank", ["hi"]),
    WrongRequest("a form instead of JSON", "POST", "/rank", "context=hi", {"Content-Type": "text/plain"}),
    WrongRequest("a timeout with a unit", "POST", "/rank", {"context": "hi"}, {"X-Request-Timeout-Ms": "200ms"}),
    WrongRequest("a path that is almost right", "POST", "/ranks", {"context": "hi"}),
    WrongRequest("a path that nothing here is like", "GET", "/collections"),
    WrongRequest("the wrong method", "GET", "/rank"),
    WrongRequest("a batch under another name", "POST", "/rank/batch", {"queries": [{"context": "hi"}]}),
    WrongRequest("a batch without rankings", "POST", "/rank/batch", {"requests": []}),
    _put("candidates under another name", {"documents": [{"id": "c1", "text": "hi"}]}),
    _put("a candidate without text", [{"id": "c1"}]),
    _put("a misspelt field of a candidate", [{"id": "c1", "text": "hi", "meta": {"lang": "en"}}]),
    _put("metadata that is no object", [{"id": "c1", "text": "hi", "metadata": "en"}]),
    _put("a key of metadata that is an operator", [{"id": "c1", "text": "hi", "metadata": {"$lang": "en"}}]),
    _put("the same id twice", [{"id": "c1", "text": "hi"}, {"id": "c1", "text": "hello"}]),
    WrongRequest("a page that does not exist", "GET", "/index/candidates?after=c5"),
    WrongRequest("a page size that is no number", "GET", "/index/candidates?limit=1e3"),
    WrongRequest("a page too large", "GET", "/index/candidates?limit=5000"),
    WrongRequest("another system's parameter", "GET", "/index/candidates?offset=100"),
    WrongRequest("a filter that is no JSON", "GET", "/index/candidates?filter=lang:en"),
    WrongRequest("a candidate that nobody knows", "GET", "/index/candidates/nobody"),
    WrongRequest("no ids to delete", "POST", "/index/candidates/delete", {"ids": []}),
    WrongRequest("one id that is no list", "POST", "/index/candidates/delete", {"id": "c1"}),
    WrongRequest("a generation that nobody knows", "POST", "/index/activate", {"generation": "yesterday"}),
    WrongRequest("nothing to roll back to", "POST", "/index/rollback"),
    WrongRequest("a build from nothing", "POST", "/index", {}),
    WrongRequest("a build from a pool without a pool root", "POST", "/index", {"pool": "pool.jsonl"}),
    WrongRequest("a job that nobody knows", "GET", "/index/jobs/nobody"),
]
