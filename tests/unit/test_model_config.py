"""polyrank.json: what is written is read back, and nothing else is let in."""

import json
import re
from dataclasses import asdict
from typing import Any

import pytest

from polyrank.model.config import AssemblyConfig, LexicalConfig, ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.registry import ARCHITECTURES


def raw(**changes: Any) -> dict[str, Any]:
    config = ModelConfig(architecture="poly", base_name="tiny", base_sha256="ab", training={"epochs": 3})
    return config.to_json() | changes


def assembly(**changes: Any) -> dict[str, Any]:
    return {"assembly": raw()["assembly"] | changes}


def test_json_round_trip() -> None:
    config = ModelConfig(
        architecture="bi",
        base_name="tiny",
        base_sha256="ab",
        base_forms=("cd", "ef"),
        languages=("en", "zh"),
        weights="base",
        reduction="first-m mean",
        reduction_m=3,
        shared_encoder=True,
        normalize=True,
        score_scale=20,
        assembly=AssemblyConfig(role_markers={"user": "u:"}, max_turns=4, turn_separator=""),
        training={"loss": 0.5, "notes": ["any", None, {"thing": True}]},
    )
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_fields_that_are_absent_have_their_defaults() -> None:
    assert ModelConfig.from_json(
        {"format_version": 1, "base": {"name": "x", "sha256": ""}, "architecture": "bi", "assembly": {}}
    ) == ModelConfig(architecture="bi", base_name="x")


def test_the_format_of_the_file() -> None:
    """What outside readers rely on."""
    assert {"format_version", "base", "architecture", "n_codes", "reduction", "normalize", "assembly"} <= set(raw())
    assert raw()["format_version"] == 1
    assert raw()["base"] == {"name": "tiny", "sha256": "ab", "forms": ()}


@pytest.mark.parametrize(("changes", "message"), [
    ({"codes": 4}, "unknown field codes"),
    ({"base_name": "x"}, "unknown field base_name"),
    ({"format_version": 2}, "format_version is 2, this release reads 1"),
    ({"format_version": None}, "format_version"),
    ({"architecture": "other"}, f"architecture is 'other', not one of {', '.join(ARCHITECTURES)}"),
    ({"architecture": ["poly"]}, "architecture"),
    ({"residual": "yes"}, "residual is 'yes', not true or false"),
    ({"residual": True}, "residual is for a model that scores pairs"),
    ({"architecture": {}}, "architecture"),
    ({"context_vectors": "middle"}, "context_vectors"),
    ({"reduction": None}, "reduction"),
    ({"weights": "half"}, "weights"),
    ({"n_codes": "4"}, "n_codes is '4', not a whole number"),
    ({"n_codes": True}, "n_codes is True, not a whole number"),
    ({"n_codes": 4.0}, "n_codes"),
    ({"n_codes": None}, "n_codes"),
    ({"n_codes": 0}, "n_codes must be at least 1"),
    ({"reduction_m": 0}, "reduction_m must be at least 1"),
    ({"max_context_tokens": 7}, "max_context_tokens must be at least 8"),
    ({"max_candidate_tokens": 40.5}, "max_candidate_tokens"),
    ({"code_scale": "1"}, "code_scale is '1', not a number"),
    ({"code_scale": True}, "code_scale"),
    ({"score_scale": 0}, "score_scale must be positive"),
    ({"score_scale": -1.0}, "score_scale must be positive"),
    ({"score_scale": float("nan")}, "score_scale"),
    ({"score_scale": float("inf")}, "score_scale"),
    ({"normalize": 1}, "normalize is 1, not true or false"),
    ({"shared_encoder": "false"}, "shared_encoder is 'false', not true or false"),
    ({"training": [1]}, "training is [1], not an object"),
    ({"base": None}, "base must be {name, sha256, forms: [sha256]}"),
    ({"base": {"name": "x"}}, "base must be"),
    ({"base": {"name": "x", "sha256": "", "url": ""}}, "base must be"),
    ({"base": {"name": 3, "sha256": ""}}, "base_name is 3, not a string"),
    ({"base": {"name": "x", "sha256": None}}, "base_sha256"),
    ({"base": {"name": "x", "sha256": "", "forms": "cd"}}, "base must be"),
    ({"base": {"name": "x", "sha256": "", "forms": [3]}}, "base_forms"),
    ({"languages": ["English"]}, "languages has 'English', which is no code of ISO 639-1, such as en"),
    ({"languages": [3]}, "languages"),
    ({"assembly": None}, "assembly is missing"),
    ({"assembly": []}, "assembly"),
    (assembly(separator=""), "unknown field assembly.separator"),
    (assembly(version=2), "assembly.version 2 is not 1"),
    (assembly(version="1"), "assembly.version is '1', not a whole number"),
    (assembly(turn_separator=None), "assembly.turn_separator is None, not a string"),
    (assembly(persona_separator=3), "assembly.persona_separator"),
    (assembly(persona_marker=["x"]), "assembly.persona_marker"),
    (assembly(role_markers=["user"]), "assembly.role_markers is ['user'], not an object of strings"),
    (assembly(role_markers={"user": 3}), "assembly.role_markers"),
    (assembly(max_turns=0), "assembly.max_turns must be at least 1"),
    (assembly(max_turns="3"), "assembly.max_turns is '3', not a whole number or null"),
    (assembly(max_turns=True), "assembly.max_turns"),
], ids=str)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointInvalid) as caught:
        ModelConfig.from_json(raw(**changes))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("polyrank.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("field", ["architecture", "base", "assembly", "format_version"])
def test_what_is_needed_is_missed(field: str) -> None:
    without = raw()
    del without[field]
    with pytest.raises(CheckpointInvalid, match=field):
        ModelConfig.from_json(without)


def test_whole_numbers_are_numbers() -> None:
    assert ModelConfig.from_json(raw(score_scale=20)).score_scale == 20


def evidence(**changes: Any) -> dict[str, Any]:
    return {"evidence": asdict(LexicalConfig(weights={"last": 0.5}, late_weight=2)) | changes}


def test_evidence_is_read_back() -> None:
    config = ModelConfig(architecture="bi", base_name="tiny", evidence=LexicalConfig(weights={"last": -1, "said": 2.5}))
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("changes", "message"), [
    ({"evidence": []}, "evidence must be an object"),
    (evidence(lexical=1), "unknown field evidence.lexical"),
    (evidence(version=2), "evidence.version 2 is not 1"),
    (evidence(late_weight=0), "evidence.late_weight must be above 0"),
    (evidence(late_weight=float("nan")), "evidence.late_weight must be above 0"),
    (evidence(late_weight=float("inf")), "evidence.late_weight must be above 0"),
    (evidence(weights={"last": "much"}), "evidence.weights is {'last': 'much'}, not an object of numbers"),
    (evidence(weights={"last": float("nan")}), "evidence.weights.last must lie between"),
    (evidence(weights={"last": 1e7}), "evidence.weights.last must lie between"),
    (evidence(k1=1.2), "unknown field evidence.k1"),
])  # fmt: skip
def test_evidence_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointInvalid, match=re.escape(message)):
        ModelConfig.from_json(raw(**changes))


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_any_architecture_may_have_evidence(architecture: str) -> None:
    config = ModelConfig(architecture=architecture, base_name="tiny", evidence=LexicalConfig(weights={"last": 0.5}))
    assert ModelConfig.from_json(config.to_json()) == config
