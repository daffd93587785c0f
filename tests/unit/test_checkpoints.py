"""The checkpoints that come with the source: small, complete, made of what may be shipped, and as good as they say."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

import polyrank
from polyrank.model.errors import ModelNotFound

SHIPPED = Path(__file__).parents[2] / "checkpoints"
NAMES = sorted(path.parent.name for path in SHIPPED.glob("*/polyrank.json"))
# All are CC BY 4.0, MIT or Apache 2.0.
MAY_SHIP = (
    "convai2_train.", "convai2_partners.", "ubuntu_irc.", "multiwoz22_train.",
    "synthetic_persona_chat.", "taskmaster4.", "star.", "chitchat.", "zh_crosswoz.", "zh_kdconv.",
)  # fmt: skip
SAMPLE = SHIPPED.parent / "examples" / "support" / "conversations.jsonl"


def test_all_are_here_and_small() -> None:
    assert NAMES == ["chat-bi", "chat-large", "chat-multi", "chat-poly", "chat-uni"]
    for name in NAMES:
        # the base of chat-large is wide; 9 MiB of chat-multi are word pieces for a hundred languages
        most = {"chat-large": 22, "chat-multi": 20}.get(name, 12)
        assert sum(path.stat().st_size for path in (SHIPPED / name).rglob("*") if path.is_file()) < most * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_says_how_it_was_made(name: str) -> None:
    raw = (SHIPPED / name / "polyrank.json").read_text()
    training = json.loads(raw)["training"]
    assert training["files"]
    assert all(each["name"].startswith(MAY_SHIP) for each in training["files"])
    assert '"/' not in raw, "a path of the machine that it was trained on"
    card = (SHIPPED / name / "README.md").read_text()
    assert card.startswith(f"# {name}\n")
    licence = "MIT" if name == "chat-multi" else "Apache-2.0"  # of the base
    for needed in ("CC BY 4.0", licence, f"checkpoints/train.sh {name}", "polyrank evaluate"):
        assert needed in re.sub(r"\s+", " ", card)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_an_adapter_that_ranks(name: str) -> None:
    try:
        ranker = polyrank.load(SHIPPED / name)
    except ModelNotFound as error:
        assert name == "chat-large"
        pytest.skip(str(error))
    kind = name.removeprefix("chat-")
    assert ranker.config.architecture == {"large": "poly", "multi": "poly"}.get(kind, kind)
    assert ranker.config.weights == "adapter"
    asked = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()[:10]]
    first = [
        ranker.rank(each["context"], each["candidates"], persona=each.get("persona", []), top_k=1)[0][0]
        for each in asked
    ]
    right = [each["candidates"][place] == each["response"] for each, place in zip(asked, first, strict=True)]
    assert sum(right) >= 7


@pytest.mark.parametrize(
    "reader",
    [AutoConfig.from_pretrained, AutoModel.from_pretrained, SentenceTransformer],
    ids=["config", "model", "sentences"],
)
@pytest.mark.parametrize("name", NAMES)
def test_other_tools_refuse_it(name: str, reader: Callable[[str], object]) -> None:
    """With a config.json they would take it for a base model, and draw its weights at random."""
    with pytest.raises(ValueError, match="Unrecognized model"):
        reader(str(SHIPPED / name))
