"""Vectors from Redis are the matrix's own, whatever Redis lacks, damaged or refuses."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import write_base

import polyrank
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.redis import within
from polyrank.model.config import ModelConfig
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import Representations
from polyrank.service.caching.vectors import largest_of

# --- largest on the vectors of a model, from those of some texts: no vector of the model is beyond them

MORE = ["[MASK]", "[unused0]", "[unused1]"]
WORDS = [f"w{n}" for n in range(40)]
RETRIEVERS = [name for name, row in ARCHITECTURES.items() if row.embeds]


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("architecture", RETRIEVERS)
def test_no_vector_of_the_model_is_longer(tmp_path: Path, architecture: str, normalize: bool) -> None:
    base = str(write_base(tmp_path / "base", 3, MORE))
    lengths = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture=architecture, base_name="tiny", normalize=normalize, **lengths)
    encode = partial(encode_texts, polyrank.from_base(base, config))
    bounds, made = largest_of(encode, 17), encode([*texts(200), "?", "", "w1 " * 500])
    for dtype in (np.float16, np.float32):
        assert within(made.first.astype(dtype), bounds.vector).all()
        assert made.late is None or within(made.late.astype(dtype), bounds.row).all()
    assert made.counts is None or made.late is None or made.counts.max() <= bounds.rows  # 16 tokens and a marker
    if normalize or made.late is not None:  # every second stage has a first one of unit vectors
        assert bounds.vector == pytest.approx(1.02, abs=0.01)
        assert not within(made.first * 1.05, bounds.vector).any()
    if architecture == "colbert":
        assert bounds.row == pytest.approx(1.02, abs=0.01)
    assert not within(made.first * 1000, bounds.vector).any()
    assert made.late is None or not within(made.late * 1000, bounds.row).any()


def test_a_model_without_a_second_stage_bounds_no_rows_and_zeros_are_no_vectors_of_another() -> None:
    bounds = largest_of(lambda given: Representations(np.zeros((len(given), 4), np.float32)), 17)
    assert bounds == (17, 0.0, float("inf"))
    assert within(np.array([[0.0], [-0.0], [1e-3]], np.float16), 0.0).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("longest", [1.0, 1e30, float("inf")])
def test_what_is_no_number_is_within_nothing(dtype: type, longest: float) -> None:
    rows = np.full((4, 3), 0.5, dtype)
    rows[0, 1], rows[1, 2], rows[2, 0] = np.nan, np.inf, -np.inf
    assert within(rows, longest).tolist() == [False, False, False, True]


def test_the_largest_numbers_are_within_an_infinite_length_alone() -> None:
    rows = np.full((1, 65_535), np.finfo(np.float32).max, np.float32)
    assert [bool(within(rows, longest)[0]) for longest in (float("inf"), 1e30)] == [True, False]
