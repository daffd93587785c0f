"""The published all-MiniLM-L6-v2 as a zero-shot Bi-encoder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

import polyrank
from polyrank.model.checkpoint.base import MINILM, resolve_base
from polyrank.model.rankers.networks import LateRanker
from polyrank.model.text.assembly import Conversation

EATING = "A man is eating food."
OTHERS = ["A man is eating a piece of bread.", "The girl is carrying a baby.", "A man is riding a horse."]
COSINES = [0.75534, -0.10496, 0.24740]  # transformers' own tokenizer and BertModel, mean over the outputs


@pytest.fixture(scope="module")
def ranker() -> LateRanker:
    loaded = polyrank.load(MINILM)
    assert isinstance(loaded, LateRanker)
    return loaded


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_base(MINILM).directory


def test_it_is_the_sentence_encoder_it_was_published_as(ranker: LateRanker) -> None:
    assert (ranker.name, ranker.architecture, ranker.dim) == (MINILM, "bi", 384)
    config = ranker.config
    assert (config.reduction, config.normalize, config.shared_encoder) == ("mean", True, True)
    assert (config.weights, config.base_name, config.base_sha256[:8]) == ("base", MINILM, "53aa5117")
    assert ranker.encoder.context is ranker.encoder.candidate


def test_cosines_are_the_published_ones(ranker: LateRanker) -> None:
    scores = dict(ranker.rank(EATING, OTHERS))
    assert [scores[at] for at in range(3)] == pytest.approx(COSINES, abs=2e-5)


def test_embeddings_are_mean_pooled_outputs_of_transformers_bert(ranker: LateRanker, directory: Path) -> None:
    bert = BertModel(BertConfig.from_pretrained(directory), add_pooling_layer=False).eval()
    bert.load_state_dict(load_file(directory / "model.safetensors"), strict=False)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    texts = [EATING, *OTHERS, "hi", "my parcel is late, and nobody answers " * 5]
    embeddings = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    for text, made in zip(texts, embeddings, strict=True):
        with torch.inference_mode():
            states = bert(input_ids=torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].double()
        expected = states.mean(dim=0) / states.mean(dim=0).norm()
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


def test_rank(ranker: LateRanker) -> None:
    parcel = "Let me track your parcel."
    replies = [parcel, "You can reset your password.", "I like horses.", parcel]
    ranked = ranker.rank(["hi", "my package has not arrived yet"], replies)
    assert {at for at, _ in ranked[:2]} == {0, 3}
    assert ranked[0][1] == pytest.approx(ranked[1][1], abs=1e-6), "equal texts score alike"
    assert ranked == sorted(ranked, key=lambda pair: -pair[1])
    assert ranker.rank(["hi", "my package has not arrived yet"], replies, top_k=1) == ranked[:1]
    assert ranker.rank("where is my password?", replies, top_k=1)[0][0] == 1


def test_an_answer_is_python_numbers(ranker: LateRanker) -> None:
    ((at, score),) = ranker.rank("hi", ["hello"])
    assert (type(at), type(score)) == (int, float)


def test_long_texts_are_cut_to_the_lengths_it_was_made_for(ranker: LateRanker) -> None:
    ids, truncation = ranker.tokenize_context(Conversation.of("word " * 1000))
    assert (len(ids), truncation.tokens) == (256, 1000 - 254)
    candidates, cut = ranker.tokenize_candidates(["word " * 1000, "word"])
    assert ([len(each) for each in candidates], cut) == ([256, 3], 1)


def test_its_checkpoint_refers_to_the_base(ranker: LateRanker, tmp_path: Path) -> None:
    ranker.save(tmp_path / "checkpoint")
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == [
        "backbone.json",
        "polyrank.json",
        "tokenizer.json",
    ]
    again = polyrank.load(tmp_path / "checkpoint")
    assert again.fingerprint == ranker.fingerprint
    assert again.rank(EATING, OTHERS) == ranker.rank(EATING, OTHERS)
