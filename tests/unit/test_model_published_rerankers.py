"""Published rerankers: the scores of sentence-transformers' CrossEncoder, or a refusal by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published import FAMILIES, write_json, write_tokenizer_config
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder
from tiny import write_base
from tiny_training import settings
from transformers import AutoModelForSequenceClassification

import polyrank
from polyrank.model.checkpoint.kind import require_pair_scorer, require_retriever, require_teacher
from polyrank.model.checkpoint.published import is_reranker
from polyrank.model.errors import CheckpointInvalid, InvalidInput, WrongKind
from polyrank.model.training.student import start

QUERY = "w1 w2 w3"
TEXTS = ["w4", "w1 w2 w3 w9", "w5 w6 w7 w8", "w30 w31", "w7 " * 40]  # the last one is longer than half of all tokens


def publish(directory: Path, family: str = "bert", labels: int = 1, **fields: Any) -> Path:
    """A tiny sequence classifier."""
    write_base(directory, seed=3)
    config = FAMILIES[family]()
    config.num_labels = labels
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_config(config)
    write_json(directory / "config.json", {**config.to_dict(), "architectures": [type(model).__name__], **fields})
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, str(directory / "model.safetensors"))
    write_tokenizer_config(directory)
    return directory


def scores_of(directory: Path, texts: list[str], **runner: Any) -> list[float]:
    ranked = dict(polyrank.load(directory, **runner).rank(QUERY, texts))
    return [ranked[at] for at in range(len(texts))]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_the_published_scores(tmp_path: Path, family: str) -> None:
    directory = publish(tmp_path / "m", family)
    theirs = CrossEncoder(str(directory), device="cpu", max_length=62)
    pairs = [(QUERY, text) for text in TEXTS]
    logits = np.array(scores_of(directory, TEXTS))
    np.testing.assert_allclose(logits, theirs.predict(pairs, activation_fn=torch.nn.Identity()), rtol=0, atol=1e-5)
    # The rerank routes give the sigmoid, which is what `predict` gives unless it is told otherwise.
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), theirs.predict(pairs), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_openvino_gives_the_same(tmp_path: Path) -> None:
    directory = publish(tmp_path / "m")
    np.testing.assert_allclose(
        scores_of(directory, TEXTS, backend="openvino"), scores_of(directory, TEXTS), rtol=0, atol=1e-4
    )


def test_it_is_a_cross_encoder_wherever_a_model_is_named(tmp_path: Path) -> None:
    directory = publish(tmp_path / "m")
    require_pair_scorer(directory)
    require_teacher(directory)
    with pytest.raises(WrongKind, match="is a cross-encoder, which has no candidate embeddings"):
        require_retriever(directory)


def test_a_copy_scores_alike(tmp_path: Path) -> None:
    directory = publish(tmp_path / "m")
    ranker = polyrank.load(directory)
    ranker.save(tmp_path / "copy")
    assert polyrank.load(tmp_path / "copy").fingerprint == ranker.fingerprint
    assert scores_of(tmp_path / "copy", TEXTS) == scores_of(directory, TEXTS)


def test_training_begins_with_its_transformer(tmp_path: Path) -> None:
    directory = publish(tmp_path / "m")
    student = start(settings(directory, architecture="cross", negatives=2))
    assert student.config.head == "linear"
    published = AutoModelForSequenceClassification.from_pretrained(directory)
    name = "embeddings.word_embeddings.weight"
    taken = dict(student.encoder.named_parameters())[f"encoder.transformer.{name}"]
    assert torch.equal(taken, dict(published.named_parameters())[f"bert.{name}"])
    polyrank.load(directory).save(tmp_path / "copy")
    with pytest.raises(InvalidInput, match=r"copy of a published reranker; give .*m itself as --base"):
        start(settings(tmp_path / "copy", architecture="cross", negatives=2))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"labels": 3}, "a classifier with 3 labels; a reranker has one"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, r"activation_fn is torch\.nn\.Tanh"),
        ({"sbert_ce_default_activation_function": "torch.nn.Softplus"}, r"activation_fn is torch\.nn\.Softplus"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, made: dict[str, Any], message: str) -> None:
    directory = publish(tmp_path / "m", **made)
    with pytest.raises(CheckpointInvalid, match=message):
        polyrank.load(directory)


def test_a_tokenizer_without_segments_is_refused(tmp_path: Path) -> None:
    directory = publish(tmp_path / "m")
    write_json(directory / "tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]})
    with pytest.raises(CheckpointInvalid, match="leaves out token_type_ids"):
        polyrank.load(directory)


@pytest.mark.parametrize("names", [None, True, [], "BertForSequenceClassification", {"a": 1}, [3]], ids=str)
def test_a_config_that_names_no_classifier_is_no_rerankers(tmp_path: Path, names: object) -> None:
    write_json(tmp_path / "config.json", {"architectures": names})
    assert not is_reranker(tmp_path)
