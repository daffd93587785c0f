"""The lexical model: what it ranks by, its checkpoint, and what it is refused for."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from command_line import write_rows

import polyrank
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.checkpoint.lookup import require_network
from polyrank.model.config import LexicalConfig, ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput, WrongKind
from polyrank.model.rankers.lexical import BUILT_IN, LexicalRanker
from polyrank.model.rankers.load import load, load_cross, load_retriever, load_vector_ranker
from polyrank.model.registry import names_in_words
from polyrank.model.text.assembly import COUNTED_LETTERS, Conversation, Truncation, Turn

FILLER = [f"filler text {n}" for n in range(100)]
LAMP, BOAT = "the lamp is broken", "a boat sails far away"


def lexical(**weights: float) -> LexicalRanker:
    config = ModelConfig(architecture="lexical", base_name="", evidence=LexicalConfig(weights=weights))
    return LexicalRanker("words", config)


def test_shared_words_rank_first_and_ties_keep_their_order() -> None:
    candidates = [*FILLER, BOAT, LAMP]
    ranked = lexical(last=1.0).rank(["hello", "my lamp"], candidates)
    assert [place for place, _ in ranked] == [101, *range(101)]
    assert ranked[0][1] > 0 == ranked[1][1]
    assert lexical(last=1.0).rank("my lamp", candidates, top_k=1) == ranked[:1]
    assert lexical(persona=1.0).rank("hello", candidates, top_k=1, persona="I have a boat")[0][0] == 100
    assert lexical(last=1.0).rank("my lamp", []) == []


@pytest.mark.parametrize("call", [{"top_k": 0}, {"context": " "}])
def test_wrong_calls_are_refused_as_by_other_rankers(call: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        polyrank.load("lexical").rank(**{"context": "a", "candidates": ["b"], **call})


def test_every_vector_is_nought_and_every_batch_has_its_size() -> None:
    ranker = lexical(last=1.0)
    tokens, cut = ranker.tokenize_candidates(["a", "b " * 5000])
    done: list[int] = []
    assert (ranker.encode_candidates(tokens, done.append) == np.zeros((2, ranker.dim), np.float32)).all()
    assert (cut, done) == (0, [2])
    assert [len(each) for each in tokens] == [2, 514]
    assert [codes.shape for codes in ranker.encode_contexts([[0], [0]])] == [(1, 1), (1, 1)]


def test_what_of_a_context_is_not_read_is_told() -> None:
    ranker = lexical(last=1.0)
    short, nothing = ranker.tokenize_context(Conversation.of(["a", "b"], "c"))
    assert (len(short), nothing) == (2, Truncation())
    turns = ["lost", " ", "b" * COUNTED_LETTERS, Turn("new", "user")]
    assert ranker.tokenize_context(Conversation.of(turns))[1] == Truncation(turns=1, tokens=1)


def test_the_checkpoint_is_one_small_file(tmp_path: Path) -> None:
    built_in = load("lexical")
    built_in.save(tmp_path / "saved")
    assert [file.name for file in (tmp_path / "saved").iterdir()] == [CONFIG_FILE]
    again = load_retriever(tmp_path / "saved")
    assert (again.fingerprint, again.name) == (built_in.fingerprint, "saved")
    candidates = [*FILLER, LAMP]
    assert again.rank("lamp", candidates) == built_in.rank("lamp", candidates)


def test_the_fingerprint_is_that_of_the_weights() -> None:
    summed = replace(BUILT_IN, training={"evidence": {"lists": 7}})
    assert LexicalRanker("x", summed).fingerprint == LexicalRanker("y", BUILT_IN).fingerprint
    assert lexical(last=1.0).fingerprint != lexical(last=1.5).fingerprint


@pytest.mark.parametrize(("change", "why"), [
    ({"evidence": None}, "evidence is missing"),
    ({"evidence": {"version": 99}}, "evidence.version 99"),
    ({"evidence": {"weights": {"smell": 1.0}}}, "unknown smell"),
])  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    write_config(tmp_path / CONFIG_FILE, BUILT_IN)
    (tmp_path / CONFIG_FILE).write_text(json.dumps({**BUILT_IN.to_json(), **change}))
    with pytest.raises(CheckpointInvalid, match=why):
        load(tmp_path)


def test_the_name_is_that_of_the_built_in_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lexical(last=3.0).save(Path("lexical"))
    assert load("lexical").config == BUILT_IN
    assert load("./lexical").fingerprint == lexical(last=3.0).fingerprint
    assert read_config(tmp_path / "lexical" / CONFIG_FILE) == lexical(last=3.0).config


def test_what_needs_a_network_refuses_it(tmp_path: Path) -> None:
    lexical(last=1.0).save(tmp_path / "own")
    for name in ("lexical", tmp_path / "own"):
        what = f"{name} is a lexical model, which ranks by words alone"
        with pytest.raises(WrongKind) as late:
            load_vector_ranker(name)
        assert str(late.value) == f"{what}; give a {names_in_words(retrieves=True)}"
        with pytest.raises(WrongKind) as cross:
            load_cross(name)
        assert str(cross.value) == f"{what}; give a cross- or uni-encoder"
        with pytest.raises(WrongKind, match="no network to train; fit its words by --only-evidence"):
            require_network(name)
    with pytest.raises(InvalidInput, match="begins from no base model"):
        polyrank.from_base("lexical")
    with pytest.raises(InvalidInput, match="begins from no base model"):
        polyrank.from_base("no-matter", BUILT_IN)
    with pytest.raises(InvalidInput, match="has no tokens"):
        lexical(last=1.0).pieces(["a"], wrapped=False)
    with pytest.raises(InvalidInput, match="unknown back-end"):
        load("lexical", backend="abacus")


def test_it_ranks_and_builds_without_torch(tmp_path: Path) -> None:
    write_rows(tmp_path / "pool.jsonl", [{"id": f"{n}", "text": text} for n, text in enumerate(FILLER)])
    code = """
import sys
import polyrank
from polyrank.service.cli import main
from polyrank.model.registry import names_in_words
assert polyrank.load("lexical").rank("a lamp", ["no", "lamp"])
assert main(["build", "--model", "lexical", "--pool", "pool.jsonl", "--store", "store"]) == 0
print(sorted({"torch", "transformers", "openvino"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["[]"]), ran.stderr


@pytest.mark.parametrize("count", [5, 20, 49, 200])
def test_one_shared_word_finds_the_reply_in_a_pool_of_any_size(count: int) -> None:
    draw = Random(0)
    nouns = ["".join(draw.choices("bcdfghjklm", k=6)) for _ in range(count)]
    replies = [f"{draw.choice(('we', 'you'))} can have the {noun} {draw.choice(('here', 'soon'))}" for noun in nouns]
    ranker = polyrank.load("lexical")
    asked = [f"what about your {noun} then?" for noun in nouns]
    found = [ranker.rank(question, replies, top_k=1)[0][0] == at for at, question in enumerate(asked)]
    assert sum(found) >= 0.95 * count
