"""Model cards: what a checkpoint's README.md says, made from its polyrank.json and from measured figures.

The header between the lines `---` is the one that the Hugging Face hub reads.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

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
    parts = [
        _header(config, name, "polyrank", valid),
        f"# {name}\n",
        _what_it_is(config),
        _use(config, name),
        _data(config.training),
        _figures(config.training, valid, bool(config.labels)),
        *(() if config.labels else (_words(config), _calibration(config))),
        "" if config.quantisation is None else _quantisation(config.quantisation),
        _settings(config.training),
        _limits(config),
    ]
    return "\n".join(part for part in parts if part)


def with_quantisation(card: str, proof: QuantisationConfig) -> str:
    """Return a card that says what int8 changes, in the place of what it said of that before, or at its end."""
    before, heading, old = card.partition(f"{_INT8}\n")
    after = _NEXT.search(old) if heading else None
    rest = old[after.start() :] if after else ""
    said = _quantisation(proof)
    return f"{before.rstrip()}\n\n{said}" + (f"\n{rest}" if rest else "")


def exported_card(config: ModelConfig, name: str) -> str:
    """Return the card of a Bi-encoder that was written for sentence-transformers into the directory `name`."""
    compared = "cosine" if config.normalize else "dot product"
    separator = f" {config.assembly.turn_separator} "
    most_turns = f", the last {config.assembly.max_turns} of them" if config.assembly.max_turns else ""
    sides = ""
    if config.sides_differ:
        sides = (
            "Contexts and replies are encoded in two ways: by `encode_query` and `encode_document`. `encode` without\n"
            "`task` is refused. This takes sentence-transformers 5.0 or above.\n"
        )
    use = f"""## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
context = ["hi, I ordered shoes{separator}Hello! What can I do for you?{separator}my parcel is late"]
replies = ["What is your order number?", "We sell lamps."]
model.similarity(model.encode_query(context), model.encode_document(replies))
```

{sides}
A context is one text: its turns, oldest first, with `{separator.strip()}` between them{most_turns}.
It has at most {config.max_context_tokens} tokens, a reply {config.max_candidate_tokens}. Where a context is too long
polyrank leaves out whole turns; here {"its beginning" if sides else "its end"} is cut.
"""
    calibration, words = "\nThe calibration of its scores is left out." if config.calibration else "", ""
    if config.evidence is not None:
        words = (
            f"\nIn polyrank words count beside them: {config.evidence.late_weight:g} times the vectors' score, and"
            " features\nof the words that context and reply share. So it ranks otherwise."
        )
    left = f"""## What is not here

Vectors are compared by {compared}, and equal those of polyrank, whose scores are {config.score_scale:g} times the dot
product.{words}{calibration}
"""
    what = f"A Bi-encoder of polyrank, written by `polyrank export --to {_EXPORTED_TO}`.\n"
    parts = [_header(config, name, _EXPORTED_TO, None), f"# {name}\n", what, use, left, _data(config.training)]
    return "\n".join(part for part in parts if part)


def _header(config: ModelConfig, name: str, library: str, valid: Mapping[str, Any] | None) -> str:
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
        for figure in (_FIGURES if valid else ())
        if valid is not None and figure in valid
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
    return f"---\n{data.to_yaml()}\n---\n"


def _published_base(config: ModelConfig) -> str | None:
    """Return the base model's name on the hub; None: it was a directory of somebody's machine, or there is none."""
    return config.base_name if config.base_name and not os.path.isabs(config.base_name) else None


def _what_it_is(config: ModelConfig) -> str:
    if not config.has_network:
        return "It ranks replies by their words alone; polyrank fitted how much each counts.\n"
    base = _published_base(config)
    begun = f"[{base}](https://huggingface.co/{base})" if base else f"`{called(config.base_name)}`"
    holds = {
        "full": f"all of its weights; it began with {begun}",
        "adapter": f"adapters on {begun}, which it names by sha256",
        "base": f"no weights of its own: those are of {begun}, which it names by sha256",
    }[config.weights]
    turns = config.assembly.max_turns
    reads = f"It reads {f'the last {turns} turns, ' if turns else ''}up to {config.max_context_tokens} tokens"
    languages = f" in {', '.join(map(named, config.languages))}" if config.languages else ""
    does = f"chooses replies in a conversation{languages}"
    if config.labels:
        what = "a conversation and a text are" if config.class_from == "head" else "the last turn of a conversation is"
        does = f"tells which of {len(config.labels)} classes {what} ({', '.join(config.labels)})"
    return (
        f"A {config.architecture.capitalize()}-encoder that {does}, trained by polyrank. "
        f"It consists of {holds}.\n{reads} of the conversation, and {config.max_candidate_tokens} tokens of a reply.\n"
    )


def _use(config: ModelConfig, name: str) -> str:
    if config.labels:
        return _use_of_classifier(config, name)
    retrieves = ARCHITECTURES[config.architecture].retrieves
    commands = (
        f"polyrank build --model {name} --pool replies.jsonl --store ./store\npolyrank serve --store ./store"
        if retrieves
        else f"polyrank serve --store ./store --reranker {name}"
    )
    others = "Other tools cannot read this directory, and say so."
    if not ARCHITECTURES[config.architecture].beyond_vectors:
        others += f" `polyrank export {name} --to {_EXPORTED_TO} --output DIR` writes its vectors for them."
    return f"""## Use

```sh
{commands}
```

```python
import polyrank

ranker = polyrank.load("{name}")
ranker.rank(["hi, my parcel is late"], ["What is your order number?", "We sell lamps."], top_k=1)
```

`{name}` is this directory. `hf download REPO --local-dir {name}` brings it from the hub. {others}
"""


def _use_of_classifier(config: ModelConfig, name: str) -> str:
    asked = '["hi, my parcel is late"], ["What is your order number?", "We sell lamps."]'
    if config.class_from == "score":
        asked = '"", ["my parcel is late", "do you sell lamps?"]'
    return f"""## Use

```python
import polyrank

classifier = polyrank.load_classifier("{name}")
classifier.classify({asked})
```

`{name}` is this directory. `hf download REPO --local-dir {name}` brings it from the hub. Other tools cannot read it.
"""


def _data(training: Mapping[str, Any]) -> str:
    files = training.get("files")
    if not files:
        return ""
    weights = [float(file["weight"]) for file in files]
    rows = [
        (f"{file['name']}", f"{file['examples']:,}", f"{file['held_out']:,}", f"{weight / sum(weights):.0%}")
        for file, weight in zip(files, weights, strict=True)
    ]
    table = _table(("file", "examples", "held out to select by", "share of batches"), rows)
    return f"## Trained on\n\n{table}"


def _figures(training: Mapping[str, Any], valid: Mapping[str, Any] | None, classes: bool) -> str:
    said = []
    if valid:
        named = [(figure, valid[figure]) for figure in _FIGURES if figure in valid]
        interval = valid.get("interval", {})
        spelt = (figure.replace("recall@", "R@").replace("mrr", "MRR") for figure, _ in named)
        values = (f"{value:.3f}{_between(interval.get(figure))}" for figure, value in named)
        rows = list(zip(spelt, values, strict=True))
        over = f"Over {valid['examples']} examples of `{valid['data']}`; brackets are 95 % intervals."
        said.append(f"{over}\n\n{_table(('figure', 'value'), rows)}")
    if selection := training.get("selection"):
        told = ", ".join(f"{name} {value:.4g}" for name, value in selection.items())
        among = "" if classes else "among the replies of a batch: "
        said.append(f"Over the examples held out, {among}{told} (step {training.get('step')}).\n")
    return "## Figures\n\n" + "\n".join(said) if said else ""


def _words(config: ModelConfig) -> str:
    if config.evidence is None:
        return "" if not config.has_network else "## Words\n\nWords count nothing beside the network.\n"
    rows = [(f"`{name}`", f"{weight:g}") for name, weight in config.evidence.weights.items()]
    said = f"The network's score counts {config.evidence.late_weight:g} times, and words beside it:"
    table = _table(("feature", "weight"), rows)
    measured = config.training.get("evidence", {}).get("recall_at_1", {})
    figures = [(name, f"{figure['plain']:.3f}", f"{figure['repeats']:.3f}") for name, figure in measured.items()]
    told = ""
    if figures:
        head = ("R@1 over lists held out", "plain", "with an earlier turn in each list")
        told = f"\n{_table(head, figures)}"
    return f"## Words\n\n{said}\n\n{table}{told}"


def _calibration(config: ModelConfig) -> str:
    fitted = config.calibration
    if fitted is None:
        return "## What scores say\n\nScores are not calibrated: they order replies, and are no probabilities.\n"
    said = (
        f"`relevance_score` is `sigmoid({fitted.slope:.4g} * score {fitted.intercept:+.4g})`: the probability that a "
        f"reply is right if {fitted.prior:.0%} of the texts are."
    )
    if measured := config.training.get("calibration"):
        said += (
            f" Over {measured['lists']} lists that a fit had not seen, 0.5 or above were "
            f"{measured['right_above_half']:.3f} of the right replies and {measured['wrong_above_half']:.2%} of the "
            "wrong ones."
        )
    return f"## What scores say\n\n{said}\n"


def _quantisation(proof: QuantisationConfig) -> str:
    rows = [
        ("R@1", f"{proof.recall_at_1:.3f}", _in_points(proof.recall_change)),
        ("MRR", f"{proof.mrr:.3f}", _in_points(proof.mrr_change)),
    ]
    why = proof.why_not_chosen()
    taken = f"`auto` does not take it: {why}." if why else "`auto` may take it."
    near = ", ".join(f"{name} {value:.4f}" for name, value in proof.nearness.items())
    return f"""{_INT8}

`polyrank quantise` calibrated it, and compared it over {proof.lists:,} lists of {proof.conversations:,} other
conversations. Differences are in points, with 95 % intervals over conversations. {taken}

{_table(("figure", "float32", "int8 changes it by"), rows)}
Beside float32: {near}.
"""


def _in_points(change: Sequence[float]) -> str:
    mean, low, high = (100 * each for each in change)
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def _settings(training: Mapping[str, Any]) -> str:
    settings = training.get("settings")
    if not settings:
        return ""
    rows = [(f"`{name}`", f"`{_shown(value)}`") for name, value in settings.items() if value not in (None, "")]
    took = f"{training.get('steps')} steps in {training.get('seconds')} s."
    return f"## Settings\n\n{took}\n\n{_table(('setting', 'value'), rows)}"


def _limits(config: ModelConfig) -> str:
    learnt = "It has learnt" if config.has_network else "Its weights were fitted"
    return f"""## Limits

{learnt} from the files named above alone. What holds of other conversations `polyrank evaluate` measures.
Nobody has stated a licence: that of the base model and of the files counts.
"""


def _between(interval: Sequence[float] | None) -> str:
    return f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""


def _shown(value: object) -> str:
    if isinstance(value, str):
        return called(value)
    return json.dumps(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
