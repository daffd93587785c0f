"""What a shard does with searches that share a call."""

import time
from pathlib import Path
from typing import Any

import pytest
from service_fakes import WordRanker, asked, pool

from polyrank.index_builder.build.pipeline import BuildOptions
from polyrank.index_builder.scale.cutting import build_parts
from polyrank.model.text.assembly import Conversation
from polyrank.service.ranking import retrieval
from polyrank.service.scale.body import Body
from polyrank.service.scale.calls import Holding, PartQuery

SECONDS = 0.03  # that a search of an index takes here


def test_searches_of_an_index_that_share_a_call_are_timed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, body = WordRanker(), Body(str(tmp_path))
    made = build_parts(ranker, pool(300), tmp_path, 1, BuildOptions(index="flat")).made
    holding = Holding(made.id, made.parts[0].name)
    body.prepare(holding)
    tokens, _ = ranker.tokenize_context(Conversation.of("w1 w2"))
    query = PartQuery(asked(), ranker.encode_contexts([tokens])[0], 0)
    search = retrieval._indexed

    def slow(*arguments: Any) -> Any:
        time.sleep(SECONDS)
        return search(*arguments)

    monkeypatch.setattr(retrieval, "_indexed", slow)
    for found in body.search(holding, [query] * 16, [float("inf")] * 16):
        assert (found.plan, found.reduced) == ("index", False)
    # Half of the time left is enough for one search, and for no sixteen.
    [found] = body.search(holding, [query], [16 * SECONDS])
    assert not found.reduced
    last = body.search(holding, [query] * 16, [16 * SECONDS] * 16)[-1]
    assert last.reduced, "those before it have left it little time"
