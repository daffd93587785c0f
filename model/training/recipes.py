"""Settings of papers, by name: what `--recipe` gives for each option that is not given.

Sources: Humeau et al. 2020, "Poly-encoders" (arXiv 1905.01969), 4.1, 5.1 to 5.3 and Appendix C; Yang et al. 2022,
"MixEncoder" (arXiv 2210.05261), 3 and A.1. A comment names each value that the paper does not state. What a paper
varies, such as how many codes, is no part of its recipe.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input

PRETRAINING_FILE = "pretraining.json"
"""What `polyrank pretrain` writes beside a base model: how it was made."""
PRETRAINING = "pretraining"

_HUMEAU = {
    "learning_rate": 5e-5,
    "code_learning_rate": 5e-5,  # one rate for all
    "optimizer": "adamw",  # with the decay of its kind: 0.01
    "schedule": "plateau",
    "looks": 2.0,
    "tune": "all-but-embeddings",
    "max_context_tokens": 360,  # as in its code
    "max_candidate_tokens": 72,  # likewise
}
_HUMEAU_APART = {
    **_HUMEAU,
    "batch_size": 512,  # of ConvAI2; 256 of the other sets
    "negatives": 0,  # those of the batch alone
    "warmup_steps": 100,
    "reduction": "first",
    "shared_encoder": False,
    "normalize": False,
    "score_scale": 1.0,
}
_OWN_WEIGHTS = {"humeau2020": {"optimizer": "adamax", "tune": "all"}}  # 5.3; Adamax has no decay
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "humeau2020": {
        "bi": _HUMEAU_APART,
        "poly": {**_HUMEAU_APART, "context_vectors": "codes", "code_scale": 1.0},
        "cross": {
            **_HUMEAU,
            "batch_size": 16,
            "negatives": 19,  # of ConvAI2, which lists them; without lists a batch has 15, as of the other sets
            "warmup_steps": 1000,
        },
        PRETRAINING: {
            "learning_rate": 2e-4,
            "code_learning_rate": 2e-4,
            "beta2": 0.98,
            "weight_decay": 0.0,
            "warmup_steps": 4000,  # the default of XLM, by which the paper trains
            "schedule": "inverse-sqrt",
            "dropout": 0.1,
            "tune": "all",
            "mask_share": 0.15,
            "alternate": True,
            "batch_tokens": 32_000,
        },
    },
    "mixencoder2022": {
        "mix": {
            "learning_rate": 1e-5,
            "code_learning_rate": 1e-5,
            "optimizer": "adamw",  # as in its code, with the decay
            "schedule": "linear",
            "warmup_steps": 0,  # not stated; a tenth of the steps in its code
            "epochs": 50.0,
            "looks": 1.0,
            "patience": 3,  # "up to 50 epochs"; as in its code
            "batch_size": 64,
            "negatives": 0,
            "tune": "all",
            "row_strategy": "inputs",
            "residual": False,
            "first_weight": 0.0,
            "shared_encoder": True,  # as in its code
            "score_scale": 1.0,
        },
    },
}


def recipe_settings(recipe: str, architecture: str, base: str) -> dict[str, Any]:
    """Return the settings of a recipe for an architecture, or PRETRAINING, that begins with the model `base`.

    A Bi-, Poly- or Cross-encoder that begins with what `polyrank pretrain` wrote is trained as the paper's with weights
    of its own; where vectors alone score, outputs are re-scaled to those of the model that pre-training began with.

    Raises InvalidInput for an unknown recipe, and for an architecture that its paper does not train so.
    """
    if recipe not in RECIPES:
        raise InvalidInput(f"recipe is {recipe!r}; give {' or '.join(RECIPES)}")
    if architecture not in RECIPES[recipe]:
        architectures = ", ".join(RECIPES[recipe])
        raise InvalidInput(f"recipe {recipe} is for {architectures}, not for {architecture}")
    settings, path = dict(RECIPES[recipe][architecture]), Path(base) / PRETRAINING_FILE
    if architecture != PRETRAINING and recipe in _OWN_WEIGHTS and path.is_file():
        settings |= _OWN_WEIGHTS[recipe]
        settings["output_like"] = json.loads(read_input(path))["settings"]["base"]
    return settings
