"""`polyrank evaluate`: its figures against figures computed here from the scores of all candidates."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import paper_scores
from command_line import call, write_rows

import polyrank
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import ReplyDraw
from polyrank.model.text.dialogues import read_dialogues

Capture = pytest.CaptureFixture[str]
Row = dict[str, Any]

FIGURES = ["recall@1", "recall@2", "recall@5", "recall@10", "mrr"]
KEYS = ["model", "examples", *FIGURES, "tied_first", "seconds", "interval"]
ONE_DIALOGUE = "all examples are of one dialogue, so the intervals have no width and say nothing\n"


def example(n: int) -> Row:
    """Twelve different candidates, the gold one at any place; every third example has it twice."""
    rng = np.random.default_rng(n)
    words = [f"w{word}" for word in rng.permutation(40)]
    candidates = [f"{one} {other}" for one, other in zip(words[:12], words[12:24], strict=True)]
    label = n % 12
    if n % 3 == 0:
        candidates[(label + 5) % 12] = candidates[label]
    context = [" ".join(words[24:30]), " ".join(words[30:36])]
    persona = ["w1 w2"] if n % 2 else []
    return {
        "context": context, "response": candidates[label], "candidates": candidates, "label": label, "persona": persona,
    }  # fmt: skip


ROWS = [example(n) for n in range(40)]


def scores_by_hand(ranker: Any, row: Row) -> list[float]:
    conversation = Conversation.of(row["context"], row["persona"])
    if isinstance(ranker, CrossRanker):
        pairs, _ = ranker.tokenize_pairs(conversation, row["candidates"])
        return [float(score) for score in ranker.score_pairs(pairs)]
    assert isinstance(ranker, VectorRanker)
    [codes] = ranker.encode_contexts([ranker.tokenize_context(conversation)[0]])
    scores = []
    for text in row["candidates"]:
        [score] = paper_scores(ranker.encode_candidates(ranker.tokenize_candidates([text])[0]), codes)
        scores.append(round(float(score), 5))  # equal texts tie, whatever they were batched with
    return scores


def ranks_by_hand(ranker: Any, rows: list[Row]) -> list[int]:
    """Return the rank of each gold reply; nothing ties with one but its own copy."""
    ranks = []
    for row in rows:
        scores = scores_by_hand(ranker, row)
        ranks.append(1 + sum(score > scores[row["label"]] for score in scores))
    return ranks


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def evaluated(capsys: Capture, name: Path, data: Path, *options: str) -> dict[str, Any]:
    result: dict[str, Any] = call(capsys, "evaluate", "--model", name, "--data", data, "--json", *options).result
    return result


# Texts that no model here tells apart: none of their words is known.
ALIKE = ["ax", "bx", "cx", "dx"]


@pytest.mark.parametrize(("name", "count"), [("poly", 500), ("cross", 40), ("lexical", 100)])
def test_figures_of_a_file_stay_when_its_candidates_are_shuffled(
    capsys: Capture, checkpoints: Path, tmp_path: Path, name: str, count: int
) -> None:
    """Ten times: words that no model knows tie, and a batch could hold other texts."""
    rng, model = np.random.default_rng(7), "lexical" if name == "lexical" else checkpoints / name
    texts = [" ".join(rng.choice([f"w{n}" for n in range(12)] + ["ax", "bx"], rng.integers(1, 7))) for _ in range(900)]
    drawn = [rng.choice(texts, 6).tolist() for _ in range(count)]
    lists = [list(dict.fromkeys([*own, *(text.replace("ax", "bx") for text in own)])) for own in drawn]
    rows = [{"context": [texts[n]], "response": each[0], "candidates": each} for n, each in enumerate(lists)]
    found = []
    for seed in range(10):
        shuffle = np.random.default_rng(seed).shuffle
        for row in rows:
            shuffle(row["candidates"])
            row["label"] = row["candidates"].index(row["response"])
        result = evaluated(capsys, model, write_rows(tmp_path / f"{seed}.jsonl", rows), "--against", "lexical")
        result["seconds"] = result["against"]["seconds"] = 0
        found.append(result)
    assert found == [found[0]] * 10
    assert found[0]["tied_first"] > 0
    assert 0 < found[0]["recall@1"] < 1


@pytest.mark.parametrize("name", ["other", "cross"])
def test_the_next_evaluation_finds_the_compiled_model(
    capsys: Capture, checkpoints: Path, tmp_path: Path, usual_cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYRANK_COMPILED_CACHE_MB")
    data = write_rows(tmp_path / "data.jsonl", ROWS[:4])
    first = evaluated(capsys, checkpoints / name, data, "--backend", "openvino")
    assert list((usual_cache / "compiled").iterdir())
    monkeypatch.setattr("openvino.Core.compile_model", None)
    again = evaluated(capsys, checkpoints / name, data, "--backend", "openvino")
    assert {**again, "seconds": 0} == {**first, "seconds": 0}


def test_limit_takes_the_first_and_reads_no_further(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:10]) + "{\n")
    ranks = ranks_by_hand(polyrank.load(checkpoints / "poly"), ROWS[:10])
    result = evaluated(capsys, checkpoints / "poly", data, "--limit", "10")
    assert result["examples"] == 10
    assert result["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 10)
    assert evaluated(capsys, checkpoints / "poly", data, "--limit", "3")["examples"] == 3
    message = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--limit", "11").failure()
    assert message.startswith(f"{data}:11: ")


def test_rows_without_candidates_are_left_out_and_told(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    bare = {"context": ["w1"], "response": "w2"}
    data = write_rows(tmp_path / "data.jsonl", [bare, *ROWS[:4], bare])
    outcome = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--json")
    assert outcome.result["examples"] == 4
    assert outcome.err.splitlines() == [
        "2 of 6 examples have no candidates and were left out",
        f"{data}: no line names its dialogue; by how they begin 2 make 1 conversations, 4 stand alone",
    ]
    output = tmp_path / "output.jsonl"
    assert call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--output", output).status == 0
    assert [each["example"] for each in read_rows(output)] == [1, 2, 3, 4]
    none = "no example has `candidates`"
    for rows, why in (([bare], f"{none}, and the file has no wrong replies to draw"), ([], none)):
        write_rows(data, rows)
        message = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data).failure()
        assert message == f"{why}; there is nothing to rank"


def test_lists_are_drawn_where_no_example_has_one(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    bare = [
        {"context": each["context"], "response": each["response"], "dialogue": f"d{n}"} for n, each in enumerate(ROWS)
    ]
    data = write_rows(tmp_path / "bare.jsonl", bare)
    ranker = polyrank.load(checkpoints / "poly")
    for options, count, seed in (((), 20, 0), (("--draw", 5, "--seed", 3), 5, 3)):
        draw, known = ReplyDraw(read_dialogues(data), count, seed), list(read_dialogues(data))
        listed = [draw.candidates(number, each) for number, each in enumerate(known)]
        rows = [
            {**row, "persona": [], "candidates": list(each.candidates), "label": each.label}
            for row, each in zip(bare, listed, strict=True)
        ]
        result = evaluated(capsys, checkpoints / "poly", data, *map(str, options))
        told = f"{count} candidates for {len(ROWS)} examples, from the file's replies (seed {seed})"
        assert result["drawn"] == told
        assert result["recall@1"] == pytest.approx(np.mean([rank == 1 for rank in ranks_by_hand(ranker, rows)]))
        outcome = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, *options)
        assert told in outcome.out
    assert (
        call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--draw", 0)
        .failure()
        .startswith("no example has `candidates`")
    )
    write_rows(data, [*bare, ROWS[0]])
    assert evaluated(capsys, checkpoints / "poly", data, "--draw", "4")["examples"] == len(ROWS) + 1


def test_words_name_every_figure(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    alike = {"context": ["w1"], "candidates": ALIKE, "dialogue": 1}
    rows = [{**alike, "response": text, "label": at} for at, text in enumerate(ALIKE)]
    data = write_rows(tmp_path / "data.jsonl", rows)
    outcome = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data)
    assert outcome.status == 0
    assert outcome.err.startswith(ONE_DIALOGUE)
    head, *rest, took = outcome.out.splitlines()
    assert re.fullmatch(r"model       poly \(measured in \d+ s\)", head)
    assert re.fullmatch(r"The command took \d+ s\.", took)
    assert rest == [
        "examples    4", "            model", "recall@1    0.250 [0.250, 0.250]", "recall@2    0.500 [0.500, 0.500]",
        "recall@5    1.000 [1.000, 1.000]", "recall@10   1.000 [1.000, 1.000]", "mrr         0.521 [0.521, 0.521]",
        "In brackets: 95 % bootstrap intervals, 10000 resamples of 1 dialogues.",
    ]  # fmt: skip


def test_conversations_that_are_not_named_are_found(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    """The examples of each of ten conversations, which begin with one of two greetings."""
    grown = [
        {**ROWS[4 * n + at], "context": [f"w{n % 2}", "w3", f"w{n} w9", *("w5",) * at, *ROWS[4 * n + at]["context"]]}
        for n in range(10)
        for at in range(4)
    ]
    named = [{**row, "dialogue": n // 4} for n, row in enumerate(grown)]
    expected = evaluated(capsys, checkpoints / "poly", write_rows(tmp_path / "named.jsonl", named))
    data = write_rows(tmp_path / "grown.jsonl", grown)
    outcome = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--json")
    assert {**outcome.result, "seconds": 0} == {**expected, "seconds": 0}
    said = "no line names its dialogue; by how they begin 40 make 10 conversations, 0 stand alone"
    assert outcome.err == f"{data}: {said}\n"


def test_two_models_on_the_same_examples(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", [{**row, "dialogue": n // 2} for n, row in enumerate(ROWS)])
    alone = {name: evaluated(capsys, checkpoints / name, data) for name in ("poly", "cross")}
    both = evaluated(capsys, checkpoints / "poly", data, "--against", str(checkpoints / "cross"))
    assert list(both) == [*KEYS, "against", "difference"]
    assert {name: both[name] for name in [*FIGURES, "interval"]} == {
        name: alone["poly"][name] for name in [*FIGURES, "interval"]
    }
    assert list(both["against"]) == ["model", *FIGURES, "tied_first", "seconds", "interval"]
    assert {**both["against"], "examples": 40, "seconds": 0} == {**alone["cross"], "seconds": 0}
    ranks = [ranks_by_hand(polyrank.load(checkpoints / name), ROWS) for name in ("poly", "cross")]
    hits = [np.array(each) <= 5 for each in ranks]
    assert both["difference"]["recall@5"]["value"] == pytest.approx(hits[0].mean() - hits[1].mean())
    assert list(both["difference"]) == FIGURES
    for figure, difference in both["difference"].items():
        low, high = difference["interval"]
        assert low <= difference["value"] <= high
        assert difference["value"] == pytest.approx(both[figure] - both["against"][figure])
    *text, _ = call(
        capsys, "evaluate", "--model", checkpoints / "poly", "--against", checkpoints / "cross", "--data", data
    ).out.splitlines()
    assert text[1].startswith("against     cross (")
    assert text[3].split() == ["model", "against", "difference"]
    value, (low, high) = both["difference"]["mrr"]["value"], both["difference"]["mrr"]["interval"]
    assert text[-2].startswith("mrr ")
    assert text[-2].endswith(f"{value:+.3f} [{low:+.3f}, {high:+.3f}]")
    assert text[-1].endswith("resamples of 20 dialogues.")


@pytest.mark.parametrize("name", ["other", "poly", "cross"])
def test_what_became_of_each_example(capsys: Capture, checkpoints: Path, tmp_path: Path, name: str) -> None:
    data, output = write_rows(tmp_path / "data.jsonl", ROWS), tmp_path / "output.jsonl"
    output.write_text("what was there before")
    result = evaluated(
        capsys, checkpoints / name, data, "--output", str(output), "--against", str(checkpoints / "other")
    )
    written = read_rows(output)
    assert [list(each) for each in written] == [["example", "rank", "tied", "score", "best", "scores"]] * 40
    assert [each["example"] for each in written] == list(range(40))
    ranks = ranks_by_hand(polyrank.load(checkpoints / name), ROWS)
    assert [each["rank"] for each in written] == ranks
    assert len(set(ranks)) > 6, "the set tells ranks apart"
    for k in (1, 2, 5, 10):
        assert result[f"recall@{k}"] == sum(rank <= k for rank in ranks) / 40, k
    assert result["mrr"] == pytest.approx(sum(1 / each["rank"] for each in written) / 40)
    for each, row in zip(written, ROWS, strict=True):
        assert each["scores"] == pytest.approx(scores_by_hand(polyrank.load(checkpoints / name), row), abs=1e-4)
        assert each["score"] == each["scores"][row["label"]]
        assert each["best"] == each["scores"].index(max(each["scores"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "output.jsonl"]


def test_a_failure_leaves_the_output_as_it_was(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    output.write_text("what was there before")
    data = write_rows(tmp_path / "data.jsonl", [ROWS[0], {"context": ["w1"]}])
    message = call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--output", output).failure()
    assert message == f"{data}:2: response must be a text"
    assert output.read_text() == "what was there before"
