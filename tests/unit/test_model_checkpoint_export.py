"""Bi-encoders written for sentence-transformers: it makes the same vectors of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from sentence_transformers import SentenceTransformer
from tiny import write_checkpoint

import polyrank
from polyrank.model.checkpoint.export import export
from polyrank.model.config import AssemblyConfig, CalibrationConfig, DenseConfig, LexicalConfig
from polyrank.model.errors import InvalidInput, WrongKind
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.assembly import Conversation

CLOSE = 1e-5
SHIPPED = Path(__file__).parents[2] / "checkpoints"
TURNS = [["w1 w2 w3"], ["w4"], ["w5 w6", "w7 w8 w9", "w10"], ["w11 w12 " * 30]]
REPLIES = ["w1 w2", "w30 w31 w32", "w2 " * 30]
LENGTHS = {"max_context_tokens": 24, "max_candidate_tokens": 24}


def assert_alike(checkpoint: Path, output: Path, conversations: list[list[str]], close: float = CLOSE) -> None:
    ours, theirs = load_vector_ranker(checkpoint), SentenceTransformer(str(output), device="cpu")
    replies = ours.encode_candidates(ours.tokenize_candidates(REPLIES)[0])
    np.testing.assert_allclose(replies, theirs.encode_document(REPLIES), rtol=0, atol=close)
    contexts = [ours.tokenize_context(Conversation.of(turns))[0] for turns in conversations]
    codes = np.concatenate(ours.encode_contexts(contexts)) / ours.config.score_scale
    texts = [f" {ours.config.assembly.turn_separator} ".join(turns) for turns in conversations]
    np.testing.assert_allclose(codes, theirs.encode_query(texts), rtol=0, atol=close)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("reduction", ["first", "mean", "max", "mean-sqrt-len", "weighted-mean", "last"])
def test_the_vectors_are_the_same(tmp_path: Path, reduction: str, shared: bool) -> None:
    fields = {"reduction": reduction, "shared_encoder": shared, "normalize": shared, "score_scale": 20.0, **LENGTHS}
    checkpoint = write_checkpoint(tmp_path, "bi", 1, architecture="bi", **fields)
    export(checkpoint, tmp_path / "out")
    # A context that is too long keeps its end; with one transformer for both sides it is cut as a reply is.
    assert_alike(checkpoint, tmp_path / "out", TURNS[:3] if shared else TURNS)
    assert (tmp_path / "out/router_config.json").is_file() is not shared


def test_a_shared_transformer_with_two_lengths_keeps_both(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path, "bi", 1, architecture="bi", shared_encoder=True, max_context_tokens=40, max_candidate_tokens=12
    )
    export(checkpoint, tmp_path / "out")
    assert_alike(checkpoint, tmp_path / "out", TURNS)


@pytest.mark.parametrize("activation", ["identity", "tanh", "relu", "gelu"])
@pytest.mark.parametrize("shared", [True, False])
def test_dense_layers_and_prompts_go_along(tmp_path: Path, activation: Any, shared: bool) -> None:
    dense = (DenseConfig(inputs=16, outputs=6, activation=activation), DenseConfig(inputs=6, outputs=4, bias=False))
    assembly = AssemblyConfig(context_prompt="w20 w21 ", candidate_prompt="w22 ")
    checkpoint = write_checkpoint(
        tmp_path, "bi", 1, architecture="bi", dense=dense, assembly=assembly, shared_encoder=shared, **LENGTHS
    )
    export(checkpoint, tmp_path / "out")
    assert_alike(checkpoint, tmp_path / "out", TURNS[:3])


def test_two_ways_are_never_taken_for_each_other(tmp_path: Path) -> None:
    export(write_checkpoint(tmp_path, "bi", 1, architecture="bi"), tmp_path / "out")
    with pytest.raises(ValueError, match="Could not determine route"):
        SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["w1"])


def test_a_plain_export_can_be_read_back(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path, "bi", 1, architecture="bi", reduction="max", shared_encoder=True, normalize=True, **LENGTHS
    )
    export(checkpoint, tmp_path / "out")
    ours, again = load_vector_ranker(checkpoint), load_vector_ranker(tmp_path / "out")
    texts = [ours.tokenize_candidates(REPLIES)[0], again.tokenize_candidates(REPLIES)[0]]
    np.testing.assert_allclose(ours.encode_candidates(texts[0]), again.encode_candidates(texts[1]), rtol=0, atol=CLOSE)


@pytest.mark.slow
def test_the_shipped_bi_encoder(tmp_path: Path) -> None:
    export(SHIPPED / "chat-bi", tmp_path / "out")
    ours, theirs = polyrank.load(SHIPPED / "chat-bi"), SentenceTransformer(str(tmp_path / "out"), device="cpu")
    replies = ["Could you give me your order number?", "We sell lamps, don't we?", "naïve café — ☕"]
    vectors = ours.encode_candidates(ours.tokenize_candidates(replies)[0])
    np.testing.assert_allclose(vectors, theirs.encode_document(replies), rtol=0, atol=CLOSE)
    turns = ["hi, I ordered shoes last week", "Hello! What can I do for you?", "where's my parcel?"]
    [codes] = ours.encode_contexts([ours.tokenize_context(Conversation.of(turns))[0]])
    np.testing.assert_allclose(codes[0] / 20, theirs.encode_query(" [SEP] ".join(turns)), rtol=0, atol=CLOSE)
    card = (tmp_path / "out/README.md").read_text()
    assert "library_name: sentence-transformers\n" in card
    assert "base_model: sentence-transformers/all-MiniLM-L6-v2\n" in card
    assert "shoes [SEP] Hello!" in card
    assert "In polyrank words count beside them" in card


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"bi", "lexical"}))
def test_other_architectures_are_refused_by_name(tmp_path: Path, name: str) -> None:
    checkpoint = write_checkpoint(tmp_path, "model", 1, architecture=name)
    with pytest.raises(WrongKind) as refused:
        export(checkpoint, tmp_path / "out")
    why = ARCHITECTURES[name].beyond_vectors
    assert why
    assert str(refused.value).startswith(f"{checkpoint} is a {name}-encoder: {why}; sentence-transformers compares ")
    assert not (tmp_path / "out").exists()


def test_what_sentence_transformers_has_not_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "bi", 1, architecture="bi", reduction="first-m mean")
    with pytest.raises(InvalidInput, match=r"reduces by 'first-m mean', which sentence-transformers has not"):
        export(checkpoint, tmp_path / "out")


def test_nothing_is_left_of_an_export_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_checkpoint(tmp_path, "bi", 1, architecture="bi")
    before = sorted(tmp_path.iterdir())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polyrank.model.checkpoint.export.exported_card", full)
    with pytest.raises(OSError, match="No space"):
        export(checkpoint, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted = {
        "evidence": LexicalConfig(late_weight=0.5, weights={"last": 1.0}),
        "calibration": CalibrationConfig(prior=0.1, slope=1.0, intercept=-3.0),
    }
    checkpoint = write_checkpoint(tmp_path, "bi", 1, architecture="bi", **fitted)
    (tmp_path / "out").mkdir()
    command = ("export", checkpoint, "--to", "sentence-transformers", "--output", tmp_path / "out")
    outcome = call(capsys, *command)
    assert (outcome.status, outcome.out.splitlines()) == (
        0,
        [
            f"{tmp_path}/out: written for sentence-transformers",
            "contexts and candidates are encoded in two ways: use encode_query and encode_document",
            "left out: words, which count in polyrank's scores: rankings differ",
            "left out: the calibration, which makes probabilities of scores",
        ],
    )
    assert call(capsys, *command).failure(2) == f"{tmp_path}/out is not an empty directory; name another one"
    again = call(capsys, *command[:-1], tmp_path / "more", "--json").result
    assert again["routes"] == ["query", "document"]
    assert len(again["left_out"]) == 2


def test_what_is_no_checkpoint_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path, "bi", 1, architecture="bi")
    for name in ("lexical", tmp_path / "bi-base", "sentence-transformers/all-MiniLM-L6-v2"):
        outcome = call(capsys, "export", name, "--to", "sentence-transformers", "--output", tmp_path / "out")
        assert outcome.failure(2) == f"{name} is no checkpoint directory; export what `polyrank train` wrote"
    poly = SHIPPED / "chat-poly"
    outcome = call(capsys, "export", poly, "--to", "sentence-transformers", "--output", tmp_path / "out")
    assert outcome.failure(2).startswith(f"{poly} is a poly-encoder: a context has several vectors")


def test_a_model_in_half_precision_stays_one(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "bi", 1, architecture="bi", shared_encoder=True, **LENGTHS)
    backbone = json.loads((checkpoint / "backbone.json").read_text())
    (checkpoint / "backbone.json").write_text(json.dumps({**backbone, "dtype": "bfloat16"}))
    export(checkpoint, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert_alike(checkpoint, tmp_path / "out", TURNS[:3], close=0.05)
