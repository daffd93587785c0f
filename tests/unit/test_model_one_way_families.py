"""One-way attention over transformers of other families than BERT: right where it can be, else refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import one_way_oracle
from tiny import CLS, SEP
from tiny_families import COMMON, FAMILIES, write
from tiny_training import settings
from transformers import RoFormerConfig

import model
from model import CrossRanker, ModelConfig
from model.errors import CheckpointInvalid
from model.one_way import CONTEXT_LOGIT
from model.pairs import Pairs
from model.training.student import start

STARTS = {"bert": 0, "electra": 0, "roberta": 2}  # RoBERTa counts positions from the one after its padding token's
PAIRS = Pairs(
    [[CLS, *range(4, 30), SEP], [CLS, 9, SEP]],
    [[CLS, 5, 6, SEP], [CLS, 7, SEP], [CLS, *range(20, 40), SEP], [CLS, 5, 6, SEP], [CLS, *range(4, 43), SEP]],
    [0, 1, 0, 1, 0],
)


def config(attention: str, shared: bool) -> ModelConfig:
    return ModelConfig(
        architecture="cross",
        base_name="",
        attention=attention,  # type: ignore[arg-type]
        context_vectors="first",
        n_codes=4,
        reduction="mean",
        shared_encoder=shared,
        max_context_tokens=40,
        max_candidate_tokens=50,
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("family", STARTS)
def test_scores_are_those_of_the_outputs(tmp_path: Path, family: str, shared: bool) -> None:
    ranker = model.from_base(str(write(tmp_path / "base", FAMILIES[family].config())), config("one-way", shared))
    assert isinstance(ranker, CrossRanker)
    encoder: Any = ranker.encoder
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in (*encoder.candidate.parameters(), encoder.head.weight):
            parameter += 0.05 * torch.randn_like(parameter)
        encoder.head.weight *= 20
    one, other = encoder.context.transformer, encoder.candidate.transformer
    expected = []
    for owner, candidate in zip(PAIRS.owners, PAIRS.candidates, strict=True):
        told = (PAIRS.contexts[owner], candidate, CONTEXT_LOGIT, STARTS[family])
        outputs = one_way_oracle.joint(one, *told) if shared else one_way_oracle.by_layers((one, other), *told)
        unread = one_way_oracle.alone(other, candidate, STARTS[family])
        expected.append(one_way_oracle.score(encoder, unread, outputs))
    np.testing.assert_allclose(
        ranker.score_pairs(PAIRS), expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max())
    )


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - STARTS))
def test_families_whose_layers_take_no_keys_of_others_are_refused(tmp_path: Path, family: str) -> None:
    base = write(tmp_path / "base", FAMILIES[family].config())
    says = f"^one-way attention is for BERT, RoBERTa and ELECTRA, not for {family}; use full$"
    with pytest.raises(CheckpointInvalid, match=says):
        model.from_base(str(base), config("one-way", False))
    with pytest.raises(CheckpointInvalid, match=says):
        start(settings(base, architecture="cross", attention="one-way"))
    model.from_base(str(base), config("full", False)).save(tmp_path / "checkpoint")
    model.load(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "polyrank.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "attention": "one-way"}))
    with pytest.raises(CheckpointInvalid, match=says):
        model.load(tmp_path / "checkpoint")


def test_a_family_that_counts_positions_by_itself_is_refused(tmp_path: Path) -> None:
    """RoFormer takes keys of others, but would give a candidate the positions that follow its neighbour's."""
    base = write(tmp_path / "base", RoFormerConfig(**COMMON))
    with pytest.raises(CheckpointInvalid, match="not for roformer"):
        model.from_base(str(base), config("one-way", False))
