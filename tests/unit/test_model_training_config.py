"""Settings of a run: what is refused, and what tells two runs apart."""

import json
import math
from typing import Any, get_args, get_type_hints

import pytest

from polyrank.model.errors import InvalidInput
from polyrank.model.options import options_of
from polyrank.model.registry import trainable
from polyrank.model.training.config import PretrainConfig, TrainConfig, settings_of


def config(**changed: Any) -> TrainConfig:
    return TrainConfig.of(**{"architecture": "poly", "base": "b", **changed})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        *[({name: 0}, name) for name in ("batch_size", "accumulate", "chunk_tokens", "steps")],
        *[({name: value}, name) for name in ("epochs", "learning_rate", "code_learning_rate", "looks")
          for value in (0.0, -1.0, math.nan, math.inf)],
        *[({name: -1}, name) for name in
          ("negatives", "extra_replies", "weight_decay", "warmup_steps", "patience", "lora_rank")],
        ({"weight_decay": math.nan}, "weight_decay"),
        *[({"beta2": value}, "beta2 must be a number from 1e-06 to 0.999999") for value in (0.0, 1.0, math.nan)],
        ({"negatives": 0, "teacher": "t"}, "negatives must be at least 1 with a teacher"),
        ({"architecture": "cross", "negatives": 0}, "negatives must be at least 1"),
        ({"output_like": "m", "lora_rank": 4}, "output_like changes whole weights; train without lora_rank"),
        ({"architecture": "mix", "output_like": "m"}, "output_like is for bi and poly"),
        ({"architecture": "cross", "output_like": "m"}, "output_like is for bi and poly"),
        ({"without": "E"}, "without is for mix"),
        ({"architecture": "mix", "interaction_layers": [0]}, "interaction_layers must name layers, from 1 or from -1"),
        *[({"dropout": value}, "dropout") for value in (-0.1, 1.0, math.nan)],
        *[({"teacher_weight": value}, "teacher_weight") for value in (-0.1, 1.1, math.nan)],
        ({"batch_size": 1}, "the others are the negatives"),
        ({"loss": "pointwise"}, "loss is for cross"),
        ({"first_stage": "p"}, "first_stage is for cross"),
        *[
            ({"architecture": "cross", "first_stage": "p", name: value}, f"{name} is as the first stage has it; leave")
            for name, value in (("n_codes", 4), ("shared_encoder", True), ("score_scale", 2.0))
        ],
        ({"architecture": "cross", "teacher": "t"}, "teacher is for bi, colbert, deformer, mix, poly and virt"),
        ({"retriever": "r"}, "retriever is for cross"),
        ({"architecture": "cross", "retriever": "r", "negatives": 1}, "negatives must be at least 2 with a retriever"),
        *[({name: 0}, f"{name} must be a whole number from 1 to") for name in ("n_codes", "reduction_m", "max_turns")],
        *[({name: 7}, f"{name} must be a whole number from 8 to")
          for name in ("max_context_tokens", "max_candidate_tokens")],
        *[({name: value}, f"{name} must be a number from 1e-09 to 1,000,000") for name in ("code_scale", "score_scale")
          for value in (0.0, -1.0, math.nan, math.inf)],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_its_options_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as told:
        config(**fields)
    assert says.replace("_", "-") in str(told.value)


KINDS = [PretrainConfig, *dict.fromkeys(map(settings_of, trainable()))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_run_has_bounds(kind: type[TrainConfig]) -> None:
    bounds = {each.name: each.bounds for each in options_of(kind)}
    hints = get_type_hints(kind)
    numbers = [name for name, hint in hints.items() if {int, float} & {hint, *get_args(hint)}]
    assert len(numbers) > 15
    for name in numbers:
        known = bounds[name]
        assert known is not None, name
        assert hints[name] in (known.kind, known.kind | None), name
        for wrong in (math.nan, math.inf, -math.inf, 10**400, -(10**400)):
            with pytest.raises(InvalidInput, match=f"^{name.replace('_', '-')} must be a"):
                kind(**{"architecture": "poly", "base": "b", name: wrong})


def test_the_edges_are_allowed() -> None:
    config(batch_size=2, weight_decay=0, warmup_steps=0, dropout=0, teacher_weight=1, steps=1, patience=0)
    config(architecture="cross", batch_size=1, loss="pointwise", retriever="r", negatives=2)
    config(architecture="cross", first_stage="p")
    config(n_codes=1, max_turns=1, max_context_tokens=8, max_candidate_tokens=8, code_scale=1e-9, score_scale=1e-9)


def test_the_stored_settings_are_plain_and_tell_runs_apart() -> None:
    stored = json.loads(json.dumps(config(seed=3).to_dict()))
    assert TrainConfig.of(**stored) == config(seed=3)
    assert config(seed=3).differences(stored) == []
    classes = config(task="classify", labels=("a", "b"))
    assert classes.differences(json.loads(json.dumps(classes.to_dict()))) == []
    assert config(seed=3, optimizer="adamax").differences(stored) == ["optimizer", "weight_decay"]
    assert config(seed=4, dropout=0.0).differences(stored) == ["seed", "dropout"]
