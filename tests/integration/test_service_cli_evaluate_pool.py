"""`polyrank evaluate` over a whole pool and over a collection with judgements, against figures counted by hand."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, write_rows
from tiny import write_checkpoint

import polyrank
from polyrank.model.config import LexicalConfig
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.folding import drawn_order

Capture = pytest.CaptureFixture[str]
Row = dict[str, Any]

FIGURES = ["recall@1", "recall@2", "recall@5", "recall@10", "recall@100", "mrr"]
JUDGED = ["ndcg@10", "mrr@10", "recall@100"]
TEXTS = [f"w{n % 40} w{n * 7 % 33} w{n // 40}" for n in range(150)]
POOL = [{"id": f"c{n}", "text": text} for n, text in enumerate(TEXTS)]
ROWS = [
    {
        "context": [f"w{n} w{n * 3 % 40}", f"w{n * 5 % 40}"],
        "response": TEXTS[n * 11 % 150],
        "candidates": [TEXTS[n * 11 % 150], "w1"],
        "dialogue": n // 2,
    }
    for n in range(30)
]


def judgements(query: int) -> dict[int, int]:
    """Return the grade of each judged text by its place."""
    return {(query * 11 + 13 * m) % 150: m % 3 for m in range(12)}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pool.jsonl", POOL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "data.jsonl", ROWS)


@pytest.fixture
def collection(tmp_path: Path) -> list[object]:
    """Arguments for a collection: the pool as documents, with twelve graded judgements a query."""
    documents = [{"_id": f"d{n}", "title": text[:3].strip(), "text": text[3:].strip()} for n, text in enumerate(TEXTS)]
    queries = [{"_id": f"q{n}", "text": row["context"][0]} for n, row in enumerate(ROWS)]
    lines = [f"q{n}\td{row}\t{grade}\n" for n in range(20) for row, grade in judgements(n).items()]
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    corpus = write_rows(tmp_path / "corpus.jsonl", documents)
    return ["--corpus", corpus, "--queries", write_rows(tmp_path / "queries.jsonl", queries), "--qrels", qrels]


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def evaluated(capsys: Capture, *options: object) -> Row:
    result: Row = call(capsys, "evaluate", "--json", *options).result
    return result


@pytest.mark.parametrize("options", [(), ("--pool",)])
def test_a_reply_that_is_marked_as_wrong_is_never_the_right_one(
    capsys: Capture, checkpoints: Path, pool: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A wrong reply that the model puts first, because it is the context, would count as found."""
    wrong = {"context": [TEXTS[0]], "response": TEXTS[0], "label": False}
    data = write_rows(tmp_path / "data.jsonl", [wrong, *ROWS, {**wrong, "label": True, "rejected": True}])
    given = ("evaluate", "--model", checkpoints / "poly", "--data", data, *options, *([pool] if options else []))
    outcome = call(capsys, *given, "--json")
    assert outcome.result["examples"] == len(ROWS)
    for mark in ("label: false", "rejected: true"):
        assert f"{data}: 1 lines were left out: the reply is marked as not right ({mark})" in outcome.err
    write_rows(data, [*ROWS, {**wrong, "label": "wrong"}])
    assert "its labels are classes" in call(capsys, *given).failure()


# Equal scores come in the order drawn: of a pool by its texts, of a collection by the ids of its documents.
BY_TEXT = [TEXTS.index(text) for text in drawn_order(TEXTS)]
BY_ID = [int(name.removeprefix("d")) for name in drawn_order(f"d{n}" for n in range(150))]


def order_by_hand(
    name: Path, context: list[str], reranker: Path | None = None, top_n: int = 20, drawn: list[int] = BY_TEXT
) -> list[int]:
    """Rank all texts by the public interface; returns their places, best first."""
    order = [drawn[at] for at, _ in polyrank.load(name).rank(context, [TEXTS[at] for at in drawn])][:100]
    if reranker is None:
        return order
    first = order[:top_n]
    again = polyrank.load(reranker).rank(context, [TEXTS[at] for at in first])
    return [*(first[at] for at, _ in again), *order[top_n:]]


def ranks_by_hand(orders: list[list[int]]) -> list[int]:
    golds = [TEXTS.index(row["response"]) for row in ROWS]
    return [order.index(gold) + 1 if gold in order else 0 for order, gold in zip(orders, golds, strict=True)]


def assert_figures(result: Row, ranks: list[int]) -> None:
    for k in (1, 2, 5, 10, 100):
        assert result[f"recall@{k}"] == pytest.approx(sum(1 <= rank <= k for rank in ranks) / len(ranks)), k
    assert result["mrr"] == pytest.approx(sum(1 / rank for rank in ranks if rank) / len(ranks))


@pytest.mark.parametrize("name", ["other", "poly"])
def test_the_gold_reply_is_found_among_all_texts(capsys, checkpoints: Path, data: Path, pool: Path, name: str) -> None:
    output = data.parent / "output.jsonl"
    result = evaluated(
        capsys, "--model", checkpoints / name, "--data", data, "--pool", pool, "--output", output, "--limit", 30
    )
    assert list(result) == ["model", "examples", "candidates", *FIGURES, "tied_first", "seconds", "interval"]
    assert (result["examples"], result["candidates"]) == (30, 150)
    orders = [order_by_hand(checkpoints / name, row["context"]) for row in ROWS]
    ranks = ranks_by_hand(orders)
    assert 0 in ranks, "some replies are not among the hundred retrieved"
    assert_figures(result, ranks)
    written = read_rows(output)
    assert [list(each) for each in written] == [
        ["example", "rank", "tied", "score", "best", "retrieved", "scores"]
    ] * 30
    assert [each["rank"] for each in written] == [rank or None for rank in ranks]
    for each, order in zip(written, orders, strict=True):
        assert each["retrieved"] == [f"c{at}" for at in order]
        assert each["best"] == each["retrieved"][0]
        assert each["score"] == (each["scores"][each["rank"] - 1] if each["rank"] else None)


def test_a_rerankers_words_count_as_a_server_counts_them(
    capsys: Capture, checkpoints: Path, data: Path, pool: Path, tmp_path: Path
) -> None:
    evidence = LexicalConfig(weights={"length": -2.0, "said": -9.0})
    cross = write_checkpoint(tmp_path, "cross", 0, architecture="cross", evidence=evidence)
    late = write_checkpoint(tmp_path, "late", 0, architecture="poly", n_codes=4, evidence=LexicalConfig())
    common = ["--data", data, "--pool", pool, "--json", "--output", tmp_path / "lines.jsonl", "--reranker", cross]
    told = []
    for model in (late, checkpoints / "poly"):
        outcome = call(capsys, "evaluate", "--model", model, *common)
        assert outcome.status == 0
        told.append(f"cross ranks by its pairs alone: {model.name} counts no words" in outcome.err)
        ranker = polyrank.load(cross)
        for row, line in zip(ROWS[:3], read_rows(tmp_path / "lines.jsonl"), strict=False):
            texts = [TEXTS[int(each.removeprefix("c"))] for each in line["retrieved"][:20]]
            statistics = None if told[-1] else ranker.statistics(TEXTS)
            scores = ranker.score_texts(Conversation.of(row["context"]), texts, statistics)
            assert line["scores"][:20] == pytest.approx(scores.tolist(), abs=1e-5)
    assert told == [False, True]


def test_each_text_counts_once_and_replies_that_the_pool_lacks_are_left_out(
    capsys: Capture, checkpoints: Path, data: Path, tmp_path: Path
) -> None:
    """The pool has every text three times, bad rows and a second file; one reply in six is missing."""
    golds = {row["response"] for row in ROWS[::6]}
    kept = [row for row in POOL if row["text"] not in golds]
    copies = [{"id": f"{row['id']}-{n}", "text": row["text"]} for row in kept for n in range(3)]
    first = write_rows(tmp_path / "first.jsonl", [*copies[:200], {"text": "a"}, {"text": "a"}, {"text": ""}, copies[0]])
    second = tmp_path / "second.csv"
    second.write_text("text\n" + "".join(f"{row['text']}\n" for row in copies[200::3]))
    outcome = call(
        capsys, "evaluate", "--json", "--model", checkpoints / "other", "--data", data, "--pool", first, second
    )
    left_out = sum(row["response"] in golds for row in ROWS)
    assert (outcome.result["examples"], outcome.result["candidates"]) == (30 - left_out, len(kept) + 1)
    assert outcome.err.splitlines() == [
        f"rows of the pool left out: 3; one of them: {first}:203: 'text' is empty",
        f"{left_out} of 30 examples have a gold reply that the pool lacks and were left out",
    ]


def test_a_reply_is_found_in_the_pool_whatever_its_case_and_encoding(capsys: Capture, tmp_path: Path) -> None:
    rows = [{"context": ["a"], "response": f"gr\u00fcn{end}", "dialogue": end} for end in ("", "!")]
    data = write_rows(tmp_path / "data.jsonl", rows)
    pool = write_rows(
        tmp_path / "pool.jsonl", [{"text": text} for text in ("GRU\u0308N", " gr\u00fc\u00adn ", "rot", "blau")]
    )
    outcome = call(capsys, "evaluate", "--json", "--model", "lexical", "--data", data, "--pool", pool)
    assert outcome.err.startswith("1 of 2 examples have a gold reply that the pool lacks and were left out")
    assert (outcome.result["examples"], outcome.result["recall@1"], outcome.result["recall@2"]) == (1, 2 / 4, 5 / 6)


def test_a_pool_in_another_encoding(capsys: Capture, tmp_path: Path) -> None:
    texts = [f"größe w{n}" for n in range(20)]
    data = write_rows(tmp_path / "data.jsonl", [{"context": [f"w{n}"], "response": texts[n]} for n in range(20)])
    pool = tmp_path / "pool.csv"
    pool.write_text("ID;Text\n" + "".join(f"{n};{text}\n" for n, text in enumerate(texts)), encoding="latin-1")
    asked = ("evaluate", "--model", "lexical", "--data", data, "--pool", pool)
    assert "no text to search" in call(capsys, *asked).err
    assert evaluated(capsys, *asked[1:], "--encoding", "latin-1")["candidates"] == 20


def test_texts_that_are_too_long_for_the_model_are_told(capsys, checkpoints: Path, data: Path, tmp_path: Path) -> None:
    pool = write_rows(tmp_path / "long.jsonl", [*POOL, {"text": "w1 " * 20}, {"text": "w2 " * 14}])
    outcome = call(capsys, "evaluate", "--model", checkpoints / "other", "--data", data, "--pool", pool)
    assert outcome.status == 0
    assert outcome.err == "other reads 1 of 152 texts without their end: they are too long\n"


def dcg(gains: list[int]) -> float:
    return sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains[:10], 1))


@pytest.mark.parametrize("options", [[], ["--reranker", "cross", "--top-n", "30"]])
def test_a_collection_with_judgements(
    capsys: Capture, checkpoints: Path, collection: list[object], tmp_path: Path, options: list[str]
) -> None:
    options = [str(checkpoints / each) if each == "cross" else each for each in options]
    output = tmp_path / "output.jsonl"
    result = evaluated(capsys, "--model", checkpoints / "poly", *collection, "--output", output, *options)
    reranker = ["reranker", "top_n"] if options else []
    assert list(result) == ["model", "examples", *reranker, "candidates", *JUDGED, "tied_first", "seconds", "interval"]
    assert (result["examples"], result["candidates"]) == (20, 150)
    written = read_rows(output)
    keys = ["query", *JUDGED, "rank", "tied", "score", "best", "retrieved", "scores"]
    assert [list(each) for each in written] == [keys] * 20
    assert [each["query"] for each in written] == [f"q{n}" for n in range(20)]
    for n, each in enumerate(written):
        cross = checkpoints / "cross" if options else None
        order = order_by_hand(checkpoints / "poly", [ROWS[n]["context"][0]], cross, 30, BY_ID)
        assert each["retrieved"] == [f"d{at}" for at in order]
        gains = [judgements(n).get(at, 0) for at in order]
        first = next((rank for rank, gain in enumerate(gains, 1) if gain), None)
        assert each["rank"] == first
        assert each["ndcg@10"] == pytest.approx(dcg(gains) / dcg([2, 2, 2, 2, 1, 1, 1, 1]))
        assert each["mrr@10"] == pytest.approx(1 / first if first and first <= 10 else 0)
        assert each["recall@100"] == pytest.approx(sum(gain > 0 for gain in gains) / 8)
    for figure in JUDGED:
        assert result[figure] == pytest.approx(np.mean([each[figure] for each in written]))
        assert result["interval"][figure][0] < result[figure] < result["interval"][figure][1]


def test_a_collection_in_words_with_its_gaps_told(
    capsys: Capture, checkpoints: Path, collection: list[object], tmp_path: Path
) -> None:
    qrels = tmp_path / "qrels.tsv"
    with qrels.open("a") as file:
        file.write("gone\td1\t1\nq1\tlost\t1\n")
    common = ["evaluate", "--model", checkpoints / "other", *collection, "--against", checkpoints / "poly"]
    outcome = call(capsys, *common, "--limit", 5)
    assert outcome.status == 0
    assert outcome.err.splitlines() == [
        f"1 judged queries are not in {tmp_path / 'queries.jsonl'} and were left out",
        f"1 judged documents are not in {tmp_path / 'corpus.jsonl'}; they count as not found",
    ]
    lines = outcome.out.splitlines()
    assert lines[2:4] == ["examples    5", "candidates  150"]
    assert [line.split()[0] for line in lines[5:8]] == JUDGED
    assert lines[-2].endswith("resamples of 5 queries.")
    assert re.fullmatch(r"The command took \d+ s\.", lines[-1])


@pytest.mark.parametrize("reranked", [False, True], ids=["alone", "reranked"])
def test_a_query_does_not_find_itself_as_in_beirs_own_evaluation(
    capsys: Capture, checkpoints: Path, tmp_path: Path, reranked: bool
) -> None:
    """Three queries are documents. Each found itself first, or level with its right one, which has the same text."""
    documents = [{"_id": f"d{n}", "text": f"w{n % 3} w{10 + n % 3} w{20 + n % 3}"} for n in range(6)]
    corpus = write_rows(tmp_path / "corpus.jsonl", documents)
    queries = write_rows(tmp_path / "queries.jsonl", documents[:3])
    qrels, output = tmp_path / "qrels.tsv", tmp_path / "o.jsonl"
    common = ["evaluate", "--model", checkpoints / "other", "--corpus", corpus, "--queries", queries, "--qrels", qrels]
    options = ["--json", "--output", output, *(["--reranker", checkpoints / "cross"] if reranked else [])]
    head = "query-id\tcorpus-id\tscore\n"
    qrels.write_text(head + "".join(f"d{n}\td{n + 3}\t1\n" for n in range(3)))
    told = call(capsys, *common, *options)
    assert "3 queries are documents themselves; each is searched without its own" in told.err
    for line in map(json.loads, output.read_text().splitlines()):
        assert sorted(line["retrieved"]) == sorted({f"d{n}" for n in range(6)} - {line["query"]})
    assert told.result["recall@100"] == 1.0
    assert reranked or told.result["ndcg@10"] == 1.0
    # Numbered alike, query and document are two things: what is judged to be right is never left out.
    qrels.write_text(head + "d0\td0\t1\n")
    told = call(capsys, *common, *options)
    assert (told.result["recall@100"], "themselves" in told.err) == (1.0, False)


def test_a_query_that_is_the_only_document_finds_nothing(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    only = write_rows(tmp_path / "only.jsonl", [{"_id": "a", "text": "w1"}])
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\na\tb\t1\n")
    given = ["--corpus", only, "--queries", only, "--qrels", tmp_path / "qrels.tsv"]
    says = call(capsys, "evaluate", "--model", checkpoints / "other", *given).err
    assert f"polyrank: {only}: its only document is a query itself; there is nothing to find" in says


def failed(capsys: Capture, status: int, *options: object) -> str:
    return call(capsys, "evaluate", *options).failure(status)


def test_files_that_cannot_be_used(
    capsys: Capture, checkpoints: Path, data: Path, pool: Path, collection: list[object], tmp_path: Path
) -> None:
    common = ["--model", checkpoints / "poly"]
    strange = write_rows(tmp_path / "strange.jsonl", [{"text": "w39 w39"}])
    says = failed(capsys, 1, *common, "--data", data, "--pool", strange)
    assert says == "no gold reply is a text of the pool; give a pool that the replies were taken from"
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\n")
    says = failed(capsys, 1, *common, *collection)
    assert says == f"{tmp_path / 'qrels.tsv'}:2: a line must be a query, a document and a score, with tabs between"


@pytest.mark.parametrize("source", ["pool", "corpus"])
def test_where_everything_ties_a_pool_is_searched_as_by_chance_in_any_order(
    capsys: Capture, checkpoints: Path, tmp_path: Path, source: str
) -> None:
    """The words are unknown to the model, so that it knows nothing; 120 texts, of which 100 are found."""
    texts = [f"{one}{other}x" for one in "abcdefghijkl" for other in "abcdefghij"]
    asked = [{"context": ["w1"], "response": text, "dialogue": text} for text in (texts[0], texts[-1], texts[60])]
    data = write_rows(tmp_path / "data.jsonl", asked)
    queries = write_rows(tmp_path / "queries.jsonl", [{"_id": f"q{n}", "text": "w1"} for n in range(3)])
    qrels = tmp_path / "qrels.tsv"
    judged = "".join(f"q{n}\t{row['response']}\t1\n" for n, row in enumerate(asked))
    qrels.write_text("query-id\tcorpus-id\tscore\n" + judged)
    found = []
    for order in (texts, texts[::-1], texts[60:] + texts[:60]):
        pool = write_rows(tmp_path / "pool.jsonl", [{"_id": text, "id": text, "text": text} for text in order])
        common = {"pool": ["--data", data, "--pool", pool]}
        common["corpus"] = ["--corpus", pool, "--queries", queries, "--qrels", qrels]
        outcome = call(capsys, "evaluate", "--json", "--model", checkpoints / "poly", *common[source])
        assert "in 100% of the examples several tie for the first place" in outcome.err
        found.append({**outcome.result, "seconds": 0})
        reranked = evaluated(
            capsys, "--model", checkpoints / "poly", *common[source], "--reranker", checkpoints / "cross"
        )
        found[-1]["reranked"] = {**reranked, "seconds": 0}
    assert found == [found[0]] * 3
    harmonic = sum(1 / rank for rank in range(1, 101))
    if source == "pool":
        assert found[0]["recall@1"] == pytest.approx(1 / 120)
        assert found[0]["mrr"] == pytest.approx(harmonic / 120)
    else:
        assert found[0]["ndcg@10"] == pytest.approx(sum(1 / np.log2(rank + 1) for rank in range(1, 11)) / 120)
    assert found[0]["recall@100"] == pytest.approx(100 / 120)
