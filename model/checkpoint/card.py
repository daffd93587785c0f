"""Model cards: what a checkpoint's README.md says, made from its polyrank.json and from measured figures.

`card.md.jinja` is the card of a checkpoint, `exported.md.jinja` that of a model written for sentence-transformers. The
header between the lines `---` is the one that the Hugging Face hub reads.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from polyrank.model.checkpoint.lookup import called
from polyrank.model.config import ModelConfig, QuantisationConfig
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.language import named

CARD_FILE = "README.md"
_INT8 = "## In int8"
_NEXT = re.compile(r"^## ", re.MULTILINE)
_EXPORTED_TO = "sentence-transformers"
_FIGURES = ("recall@1", "recall@2", "recall@5", "recall@10", "mrr", "accuracy", "log_loss")


def checkpoint_card(config: ModelConfig, name: str, valid: Mapping[str, Any] | None = None) -> str:
    """Return the card of a checkpoint in the directory `name`.

    valid: what `polyrank evaluate --json` says of it over a file of its own, with `data`, the file's name.
    """
    base, valid = _published_base(config), valid or {}
    figures = [
        (figure.replace("recall@", "R@").replace("mrr", "MRR"), f"{valid[figure]:.3f}{_between(valid, figure)}")
        for figure in _FIGURES
        if figure in valid
    ]
    settings = config.training.get("settings") or {}
    return _template("card.md.jinja").render(
        config=config,
        int8=_INT8,
        row=ARCHITECTURES[config.architecture],
        header=_header(config, name, "polyrank", valid),
        name=name,
        begun=f"[{base}](https://huggingface.co/{base})" if base else f"`{called(config.base_name)}`",
        languages=[named(each) for each in config.languages],
        valid=valid,
        figures=figures,
        settings=[(f"`{key}`", f"`{_shown(value)}`") for key, value in settings.items() if value not in (None, "")],
    )


def with_quantisation(card: str, proof: QuantisationConfig) -> str:
    """Return a card that says what int8 changes, in the place of what it said of that before, or at its end."""
    before, heading, old = card.partition(f"{_INT8}\n")
    after = _NEXT.search(old) if heading else None
    rest = old[after.start() :] if after else ""
    section = _template("parts.md.jinja").module.in_int8(proof, _INT8)  # type: ignore[attr-defined]  # a macro
    return f"{before.rstrip()}\n\n{section}" + (f"\n{rest}" if rest else "")


def exported_card(config: ModelConfig, name: str) -> str:
    """Return the card of a Bi-encoder that was written for sentence-transformers into the directory `name`."""
    header = _header(config, name, _EXPORTED_TO, {})
    return _template("exported.md.jinja").render(config=config, header=header, name=name)


@cache
def _template(name: str) -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    # Markdown, not HTML: nothing is escaped.
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(name)


def _header(config: ModelConfig, name: str, library: str, valid: Mapping[str, Any]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    pairs = not ARCHITECTURES[config.architecture].retrieves
    task = "text-classification" if config.labels else "text-ranking"
    if library == _EXPORTED_TO:
        task = "sentence-similarity"
    results = [
        EvalResult(
            task_type=task,
            dataset_type="dialogues",
            dataset_name=str(valid["data"]),
            metric_type=figure.replace("@", "_at_"),
            metric_value=round(float(valid[figure]), 4),
        )
        for figure in _FIGURES
        if figure in valid
    ]
    kind = "cross-encoder" if pairs else f"{config.architecture}-encoder"
    purpose = "text-classification" if config.labels else "response-selection"
    data = ModelCardData(
        library_name=library,
        pipeline_tag=task,
        language=list(config.languages) or None,
        tags=["polyrank", kind if config.has_network else config.architecture, purpose],
        base_model=_published_base(config),
        model_name=name if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _published_base(config: ModelConfig) -> str | None:
    """Return the base model's name on the hub; None: it was a directory of somebody's machine, or there is none."""
    return config.base_name if config.base_name and not os.path.isabs(config.base_name) else None


def _between(valid: Mapping[str, Any], figure: str) -> str:
    ends: Sequence[float] | None = valid.get("interval", {}).get(figure)
    return f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""


def _shown(value: object) -> str:
    return called(value) if isinstance(value, str) else json.dumps(value)
