"""Loaded models, as `polyrank.load` gives them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import write_base, write_checkpoint
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

import polyrank
from polyrank.model.checkpoint.lookup import MINILM, resolve_base
from polyrank.model.errors import InvalidInput, ModelNotFound
from polyrank.model.rankers.load import load_cross, load_vector_ranker
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.registry import names_in_words
from polyrank.model.text.assembly import Conversation


@pytest.fixture(params=["bi", "cross"])
def ranker(request: pytest.FixtureRequest, tmp_path: Path) -> polyrank.VectorRanker | polyrank.CrossRanker:
    config = polyrank.ModelConfig(
        architecture=request.param, base_name="", max_context_tokens=40, max_candidate_tokens=16
    )
    return polyrank.from_base(str(write_base(tmp_path / "base", 0)), config)


@pytest.mark.parametrize("top_k", [0, -1])
def test_fewer_than_one_place_is_refused(ranker: polyrank.VectorRanker | polyrank.CrossRanker, top_k: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        ranker.rank("w1", ["w2", "w3"], top_k=top_k)


def test_one_string_is_not_taken_for_a_text_a_letter(ranker: polyrank.VectorRanker | polyrank.CrossRanker) -> None:
    with pytest.raises(InvalidInput, match="must be a list"):
        ranker.rank("w1", "w2")


def test_a_persona_of_one_text_is_one_fact(ranker: polyrank.VectorRanker | polyrank.CrossRanker) -> None:
    assert ranker.rank("w1", ["w2", "w3"], persona="w4 w5") == ranker.rank("w1", ["w2", "w3"], persona=["w4 w5"])
    assert ranker.rank("w1", ["w2", "w3"], persona="w4 w5") != ranker.rank("w1", ["w2", "w3"], persona=["w4", "w5"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each kind, by its name, and a base model."""
    parent = tmp_path_factory.mktemp("models")
    for seed, kind in enumerate(("bi", "poly", "cross")):
        write_checkpoint(parent, kind, seed, architecture=kind)
    write_base(parent / "base", 3)
    return parent


@pytest.mark.parametrize(("name", "architecture"), [("bi", "bi"), ("poly", "poly"), ("base", "bi")])
def test_late_models(models: Path, name: str, architecture: str) -> None:
    loaded = load_vector_ranker(models / name)
    assert isinstance(loaded, VectorRanker)
    assert (loaded.name, loaded.architecture) == (name, architecture)
    with pytest.raises(InvalidInput) as refused:
        load_cross(models / name)
    assert str(refused.value) == f"{models / name} is a {architecture}-encoder; give a cross- or uni-encoder"


def test_cross_models(models: Path) -> None:
    loaded = load_cross(str(models / "cross"))
    assert isinstance(loaded, CrossRanker)
    assert loaded.name == "cross"
    with pytest.raises(InvalidInput) as refused:
        load_vector_ranker(models / "cross")
    what = f"is a cross-encoder, which has no candidate embeddings; give a {names_in_words(retrieves=True)}"
    assert str(refused.value) == f"{models / 'cross'} {what}"


def test_no_model(models: Path) -> None:
    for load in (load_vector_ranker, load_cross):
        with pytest.raises(ModelNotFound, match="none"):
            load(models / "none")


EATING = "A man is eating food."
OTHERS = ["A man is eating a piece of bread.", "The girl is carrying a baby.", "A man is riding a horse."]
COSINES = [0.75534, -0.10496, 0.24740]  # transformers' own tokenizer and BertModel, mean over the outputs


@pytest.fixture(scope="module")
def minilm() -> VectorRanker:
    loaded = polyrank.load(MINILM)
    assert isinstance(loaded, VectorRanker)
    return loaded


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_base(MINILM).directory


def test_it_is_the_sentence_encoder_it_was_published_as(minilm: VectorRanker) -> None:
    assert (minilm.name, minilm.architecture, minilm.dim) == (MINILM, "bi", 384)
    config = minilm.config
    assert (config.reduction, config.normalize, config.shared_encoder) == ("mean", True, True)
    assert (config.weights, config.base_name, config.base_sha256[:8]) == ("base", MINILM, "53aa5117")
    assert minilm.encoder.context is minilm.encoder.candidate


def test_cosines_are_the_published_ones(minilm: VectorRanker) -> None:
    scores = dict(minilm.rank(EATING, OTHERS))
    assert [scores[at] for at in range(3)] == pytest.approx(COSINES, abs=2e-5)


def test_embeddings_are_mean_pooled_outputs_of_transformers_bert(minilm: VectorRanker, directory: Path) -> None:
    bert = BertModel(BertConfig.from_pretrained(directory), add_pooling_layer=False).eval()
    bert.load_state_dict(load_file(directory / "model.safetensors"), strict=False)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    texts = [EATING, *OTHERS, "hi", "my parcel is late, and nobody answers " * 5]
    embeddings = minilm.encode_candidates(minilm.tokenize_candidates(texts)[0])
    for text, made in zip(texts, embeddings, strict=True):
        with torch.inference_mode():
            states = bert(input_ids=torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].double()
        expected = states.mean(dim=0) / states.mean(dim=0).norm()
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


def test_an_answer_is_python_numbers(minilm: VectorRanker) -> None:
    ((at, score),) = minilm.rank("hi", ["hello"])
    assert (type(at), type(score)) == (int, float)


def test_long_texts_are_cut_to_the_lengths_it_was_made_for(minilm: VectorRanker) -> None:
    ids, truncation = minilm.tokenize_context(Conversation.of("word " * 1000))
    assert (len(ids), truncation.tokens) == (256, 1000 - 254)
    candidates, cut = minilm.tokenize_candidates(["word " * 1000, "word"])
    assert ([len(each) for each in candidates], cut) == ([256, 3], 1)


def test_its_checkpoint_refers_to_the_base(minilm: VectorRanker, tmp_path: Path) -> None:
    minilm.save(tmp_path / "checkpoint")
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == [
        "backbone.json", "polyrank.json", "tokenizer.json",
    ]  # fmt: skip
    again = polyrank.load(tmp_path / "checkpoint")
    assert again.fingerprint == minilm.fingerprint
    assert again.rank(EATING, OTHERS) == minilm.rank(EATING, OTHERS)
