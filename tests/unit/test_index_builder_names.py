"""What a build can be asked for: which of it changes a generation's files."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from polyrank.index_builder.building.pipeline import BuildOptions
from polyrank.index_builder.building.stages import EncodedContext
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.model.text.assembly import Conversation

OTHER: dict[str, Any] = {
    "index": "flat",
    "min_recall": 0.5,
    "dtype": "float32",
    "chosen": IndexSpec("exact"),
    "redis_url": "redis://r",
    "max_rejected": 0.5,
    "activate": False,
    "probes": [EncodedContext(Conversation.of("hi"), np.zeros((1, 4), np.float32))],
    "revision": 3,
    "replaces": "g",
}
BESIDE = {"redis_url", "max_rejected", "activate", "probes", "revision", "replaces"}


@pytest.mark.parametrize("name", [each.name for each in fields(BuildOptions)])
def test_an_option_changes_what_a_part_is_known_by_unless_its_field_says_otherwise(name: str) -> None:
    plain = BuildOptions()
    changed = replace(plain, **{name: OTHER[name]})
    assert (changed.of_files() == plain.of_files()) == (name in BESIDE)
