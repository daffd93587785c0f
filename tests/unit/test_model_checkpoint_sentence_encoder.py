"""Models as they were published for sentence-transformers: encoders and rerankers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from published import FAMILIES, write_json, write_tokenizer_config
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny import DIM, VOCABULARY, write_base
from tiny_training import settings
from transformers import AutoModel, AutoModelForSequenceClassification, PretrainedConfig

import polyrank
from polyrank.model.checkpoint.lookup import require_pair_scorer, require_retriever, require_teacher
from polyrank.model.checkpoint.sentence_encoder import is_reranker
from polyrank.model.errors import CheckpointInvalid, InvalidInput, WrongKind
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.student import start

CLOSE = 1e-5
OLD_FLAGS = {
    "cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens", "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
NEW = "sentence_transformers.sentence_transformer.modules"
OLD = "sentence_transformers.models"
TEXTS = ["w1 w2 w3", "w30", "w5 w6 w7 w8 w9 w10 w11", "w2 " * 30]


def publish(
    directory: Path,
    config: PretrainedConfig | None = None,
    *,
    pooling: Mapping[str, Any] | None = None,
    modules: tuple[str, ...] = ("Normalize",),
    dense: Mapping[str, Any] | None = None,
    words: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    library: str = OLD,
) -> Path:
    """A tiny sentence encoder, as sentence-transformers lays one out."""
    write_base(directory, seed=3)
    if config is not None:
        torch.manual_seed(3)
        write_json(directory / "config.json", config.to_dict())
        save_file(AutoModel.from_config(config).state_dict(), str(directory / "model.safetensors"))
    write_tokenizer_config(directory)
    write_json(
        directory / "1_Pooling/config.json",
        pooling or {"word_embedding_dimension": DIM, "pooling_mode_mean_tokens": True},
    )
    listed = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed += [(kind, f"{number}_{kind}") for number, kind in enumerate(modules, 2)]
    entries = [
        {"idx": at, "name": str(at), "path": path, "type": f"{library}.{kind}"}
        for at, (kind, path) in enumerate(listed)
    ]
    write_json(directory / "modules.json", entries)
    for kind, path in listed[2:]:
        (directory / path).mkdir()
        if kind == "Dense":
            write_dense(directory / path, dense or {})
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": False, **(words or {})})
    if settings is not None:
        write_json(directory / "config_sentence_transformers.json", settings)
    return directory


def write_dense(path: Path, fields: Mapping[str, Any]) -> None:
    config = {
        "in_features": DIM, "out_features": 6, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh",
    }  # fmt: skip
    write_json(path / "config.json", {**config, **fields})
    torch.manual_seed(5)
    tensors = {"linear.weight": torch.randn(6, DIM), "linear.bias": torch.randn(6)}
    save_file(tensors, str(path / "model.safetensors"))


def assert_alike(directory: Path, scaled: bool = False) -> None:
    """The same vectors of candidates and of contexts; `scaled`: as directions."""
    ours, theirs = polyrank.load(directory), SentenceTransformer(str(directory), device="cpu")
    candidates = ours.encode_candidates(ours.tokenize_candidates(TEXTS)[0])
    near(candidates, theirs.encode_document(TEXTS), scaled)
    short = TEXTS[:3]  # a context that is too long loses its beginning, because a reply answers its end
    contexts = ours.encode_contexts([ours.tokenize_context(Conversation.of(text))[0] for text in short])
    near(np.concatenate(contexts), theirs.encode_query(short), scaled)


def near(ours: NDArray[np.float32], theirs: Any, scaled: bool) -> None:
    if scaled:
        theirs = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_the_published_vectors(tmp_path: Path, family: str) -> None:
    assert_alike(publish(tmp_path / "m", FAMILIES[family]()))


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("mode", OLD_FLAGS)
def test_each_pooling_in_both_spellings(tmp_path: Path, mode: str, is_new: bool) -> None:
    flag = f"pooling_mode_{mode}" + (
        "_token" if mode == "cls" else "" if mode.endswith(("tokens", "token")) else "_tokens"
    )
    spelt = {"pooling_mode": mode} if is_new else {flag: True}
    size = "embedding_dimension" if is_new else "word_embedding_dimension"
    library = f"{NEW}" if is_new else OLD
    assert_alike(publish(tmp_path / "m", pooling={size: DIM, **spelt}, library=OLD if not is_new else library))


@pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"])
def test_dense_layers_belong_to_the_model(tmp_path: Path, activation: str) -> None:
    directory = publish(tmp_path / "m", modules=("Dense", "Normalize"), dense={"activation_function": activation})
    assert_alike(directory)
    ranker = polyrank.load(directory)
    assert ranker.dim == 6
    ranker.save(tmp_path / "saved")
    again = polyrank.load(tmp_path / "saved")
    assert again.fingerprint == ranker.fingerprint
    assert again.rank("w1 w2", ["w3", "w4 w5"]) == ranker.rank("w1 w2", ["w3", "w4 w5"])
    (directory / "2_Dense/model.safetensors").unlink()
    write_dense(directory / "2_Dense", {"activation_function": "torch.nn.modules.activation.ReLU"})
    assert polyrank.load(directory).fingerprint != ranker.fingerprint


def test_prompts_stand_before_contexts_and_candidates(tmp_path: Path) -> None:
    prompts = {"query": "w20 w21 ", "document": "w22 "}
    directory = publish(tmp_path / "m", settings={"prompts": prompts})
    assert_alike(directory)
    ranker = polyrank.load(directory)
    ids, _ = ranker.tokenize_context(Conversation.of(["w1", "w2"], persona="w3"))
    words = [VOCABULARY[each] for each in ids]
    assert words == ["[CLS]", "w20", "w21", "w3", "[SEP]", "w1", "[SEP]", "w2", "[SEP]"]


def test_a_default_prompt_is_for_both_sides(tmp_path: Path) -> None:
    directory = publish(tmp_path / "m", settings={"prompts": {"all": "w9 "}, "default_prompt_name": "all"})
    ours, theirs = polyrank.load(directory), SentenceTransformer(str(directory), device="cpu")
    expected = theirs.encode(TEXTS[:3])
    near(ours.encode_candidates(ours.tokenize_candidates(TEXTS[:3])[0]), expected, False)
    contexts = [ours.tokenize_context(Conversation.of(text))[0] for text in TEXTS[:3]]
    near(np.concatenate(ours.encode_contexts(contexts)), expected, False)


def test_without_normalize_cosine_compares_at_unit_length(tmp_path: Path) -> None:
    assert_alike(publish(tmp_path / "m", modules=()), scaled=True)


def test_a_dot_product_keeps_lengths(tmp_path: Path) -> None:
    assert_alike(publish(tmp_path / "m", modules=(), settings={"similarity_fn_name": "dot"}))


@pytest.mark.parametrize(("made", "message"), [
    ({"pooling": {"pooling_mode": ["cls", "mean"]}}, r"pooling_mode is cls \+ mean"),
    ({"pooling": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}}, r"pooling_mode is cls \+ max"),
    ({"pooling": {"pooling_mode": "attention"}}, "pooling_mode is attention"),
    ({"modules": ("LSTM",)}, "a module LSTM at 2_LSTM"),
    ({"modules": ("Normalize", "Dense")}, "a module Normalize at 2_Normalize"),
    ({"modules": ("Dense",), "dense": {"activation_function": "torch.nn.Softsign"}}, "activation_function is Softsign"),
    ({"settings": {"similarity_fn_name": "manhattan"}}, "similarity_fn_name is manhattan"),
    ({"settings": {"prompts": {"query": 3}}}, "prompts in config_sentence_transformers.json must be texts"),
    ({"settings": {"default_prompt_name": ["query"]}}, "default_prompt_name in .* must be a text"),
    ({"pooling": {"pooling_mode": [["mean"]]}}, r"pooling_mode is \['mean'\]"),
    ({"words": {"max_seq_length": "long"}}, "'long', not a whole number"),
    (
        {"settings": {"prompts": {"query": "w1 "}}, "pooling": {"pooling_mode": "mean", "include_prompt": False}},
        "include_prompt is false",
    ),
    ({"words": {"do_lower_case": True}}, "do_lower_case is set, and tokenizer.json keeps capitals"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, made: dict[str, Any], message: str) -> None:
    directory = publish(tmp_path / "m", **made)
    if "do_lower_case" in message:  # the tiny tokenizer knows no capital but these
        vocabulary = (directory / "tokenizer.json").read_text().replace('"w39"', '"Aa"').replace('"w38"', '"aa"')
        (directory / "tokenizer.json").write_text(vocabulary)
    with pytest.raises(CheckpointInvalid, match=message):
        polyrank.load(directory)


@pytest.mark.parametrize("folder", ["../other", "/other", 3, None])
def test_modules_lie_in_the_directory(tmp_path: Path, folder: object) -> None:
    directory = publish(tmp_path / "m")
    modules = json.loads((directory / "modules.json").read_text())
    modules[1]["path"] = folder
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointInvalid, match="each module needs a type and a path in the directory"):
        polyrank.load(directory)


def test_training_begins_with_the_published_pooling(tmp_path: Path) -> None:
    from tiny_training import settings

    from polyrank.model.training.student import start

    directory = publish(tmp_path / "m", pooling={"pooling_mode": "cls"}, settings={"prompts": {"query": "w1 "}})
    config = start(settings(directory, architecture="bi", reduction=None)).config
    assert (config.reduction, config.assembly.context_prompt) == ("first", "w1 ")


QUERY = "w1 w2 w3"
REPLIES = ["w4", "w1 w2 w3 w9", "w5 w6 w7 w8", "w30 w31", "w7 " * 40]  # the last one is longer than half of all tokens


def publish_reranker(directory: Path, family: str = "bert", labels: int = 1, **fields: Any) -> Path:
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
    directory = publish_reranker(tmp_path / "m", family)
    theirs = CrossEncoder(str(directory), device="cpu", max_length=62)
    pairs = [(QUERY, text) for text in REPLIES]
    logits = np.array(scores_of(directory, REPLIES))
    np.testing.assert_allclose(logits, theirs.predict(pairs, activation_fn=torch.nn.Identity()), rtol=0, atol=1e-5)
    # The rerank routes give the sigmoid, which is what `predict` gives unless it is told otherwise.
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), theirs.predict(pairs), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_openvino_gives_the_same(tmp_path: Path) -> None:
    directory = publish_reranker(tmp_path / "m")
    np.testing.assert_allclose(
        scores_of(directory, REPLIES, backend="openvino"), scores_of(directory, REPLIES), rtol=0, atol=1e-4
    )


def test_it_is_a_cross_encoder_wherever_a_model_is_named(tmp_path: Path) -> None:
    directory = publish_reranker(tmp_path / "m")
    require_pair_scorer(directory)
    require_teacher(directory)
    with pytest.raises(WrongKind, match="is a cross-encoder, which has no candidate embeddings"):
        require_retriever(directory)


def test_a_copy_scores_alike(tmp_path: Path) -> None:
    directory = publish_reranker(tmp_path / "m")
    ranker = polyrank.load(directory)
    ranker.save(tmp_path / "copy")
    assert polyrank.load(tmp_path / "copy").fingerprint == ranker.fingerprint
    assert scores_of(tmp_path / "copy", REPLIES) == scores_of(directory, REPLIES)


def test_training_begins_with_its_transformer(tmp_path: Path) -> None:
    directory = publish_reranker(tmp_path / "m")
    student = start(settings(directory, architecture="cross", negatives=2))
    assert student.config.head == "linear"
    published = AutoModelForSequenceClassification.from_pretrained(directory)
    name = "embeddings.word_embeddings.weight"
    taken = dict(student.encoder.named_parameters())[f"encoder.transformer.{name}"]
    assert torch.equal(taken, dict(published.named_parameters())[f"bert.{name}"])
    polyrank.load(directory).save(tmp_path / "copy")
    with pytest.raises(InvalidInput, match=r"copy of a published reranker; give .*m itself as --base"):
        start(settings(tmp_path / "copy", architecture="cross", negatives=2))


@pytest.mark.parametrize(("made", "message"), [
    ({"labels": 3}, "a classifier with 3 labels; a reranker has one"),
    ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, r"activation_fn is torch\.nn\.Tanh"),
    ({"sbert_ce_default_activation_function": "torch.nn.Softplus"}, r"activation_fn is torch\.nn\.Softplus"),
])  # fmt: skip
def test_what_a_reranker_cannot_honour_is_refused_by_name(tmp_path: Path, made: dict[str, Any], message: str) -> None:
    directory = publish_reranker(tmp_path / "m", **made)
    with pytest.raises(CheckpointInvalid, match=message):
        polyrank.load(directory)


def test_a_tokenizer_without_segments_is_refused(tmp_path: Path) -> None:
    directory = publish_reranker(tmp_path / "m")
    write_json(directory / "tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]})
    with pytest.raises(CheckpointInvalid, match="leaves out token_type_ids"):
        polyrank.load(directory)


@pytest.mark.parametrize("names", [None, True, [], "BertForSequenceClassification", {"a": 1}, [3]], ids=str)
def test_a_config_that_names_no_classifier_is_no_rerankers(tmp_path: Path, names: object) -> None:
    write_json(tmp_path / "config.json", {"architectures": names})
    assert not is_reranker(tmp_path)
