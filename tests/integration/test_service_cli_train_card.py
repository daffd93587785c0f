"""What `polyrank train` tells others of a checkpoint: its model card, and the hub."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_hub
import huggingface_hub
import pytest
import yaml
from command_line import Outcome, call, write_rows
from fake_hub import TOKEN, FakeHub
from huggingface_hub import constants
from tiny import write_checkpoint
from tiny_training import orders, rows, write_examples

import polyrank
from polyrank.model import processor

BASE_SEED = 0
Capture = pytest.CaptureFixture[str]
QUICK = [
    *("--steps", 4, "--batch-size", 8, "--warmup-steps", 0, "--learning-rate", 0.01, "--dropout", 0),
    *("--max-context-tokens", 40, "--max-candidate-tokens", 16),
]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that this process asks, with a token."""
    with fake_hub.running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        huggingface_hub.close_session()
        yield hub
        huggingface_hub.close_session()


def train(
    capsys: Capture, base: Path, tmp_path: Path, *more: object, architecture: str = "bi", precision: str = "no"
) -> Outcome:
    data = tmp_path / "data.jsonl"
    if not data.exists():
        write_examples(data)
    fixed = ["--architecture", architecture, "--base", base, "--train", data, "--output", tmp_path / "mine"]
    return call(capsys, "train", *fixed, *QUICK, "--precision", precision, *more)


def header(card: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert found
    value: dict[str, Any] = yaml.safe_load(found[1])
    return value


@pytest.mark.parametrize(("flags", "ran"), [("avx512_bf16", "bf16"), ("avx512_vnni", "no")])
def test_the_card_says_in_which_precision_it_ran(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path, flags: str, ran: str
) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda: {"flags": flags})
    result = train(capsys, base, tmp_path, "--json", precision="auto").result
    assert result["settings"]["precision"] == ran
    assert f"| `precision` | `{ran}` |" in (tmp_path / "mine" / "README.md").read_text()


def test_the_card_says_how_it_was_made(capsys: Capture, base: Path, tmp_path: Path) -> None:
    candidates = [f"w{n}" for n in range(4, 8)]
    lists = [{**row, "candidates": candidates} for row in rows(120)[80:]]
    valid = write_rows(tmp_path / "later.jsonl", lists)
    outcome = train(capsys, base, tmp_path, "--valid", valid, "--json")
    card = (tmp_path / "mine/README.md").read_text()
    told = header(card)
    assert (told["library_name"], told["pipeline_tag"]) == ("polyrank", "text-ranking")
    assert told["tags"] == ["polyrank", "bi-encoder", "response-selection"]
    assert "base_model" not in told, "a directory of this machine is no model of the hub"
    [result] = told["model-index"][0]["results"]
    figures = {each["type"]: each["value"] for each in result["metrics"]}
    assert figures["recall_at_1"] == round(outcome.result["valid"]["recall@1"], 4)
    assert "# mine\n" in card
    assert "| data.jsonl | 72 | 8 | 100% |\n" in card
    low, high = outcome.result["valid"]["interval"]["recall@1"]
    assert f"| R@1 | {outcome.result['valid']['recall@1']:.3f} [{low:.3f}, {high:.3f}] |\n" in card
    assert "Over 40 examples of `later.jsonl`" in card
    assert "| `steps` | `4` |\n" in card
    assert "Words count nothing beside the network" in card
    assert "Scores are not calibrated" in card
    assert "polyrank export mine --to sentence-transformers" in card
    assert str(tmp_path) not in card
    assert str(base.parent) not in card


def test_it_names_the_recipe_and_the_settings_that_were_used(capsys: Capture, base: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "data.jsonl", orders(560))  # words would help
    given = ["--recipe", "humeau2020", "--optimizer", "adamax", "--schedule", "constant", "--normalize"]
    outcome = train(capsys, base, tmp_path, *given, "--reduction", "first-m mean", "--reduction-m", 3, "--json")
    card = (tmp_path / "mine/README.md").read_text()
    for name, value in (
        ("recipe", "humeau2020"),  # and what was given, before it
        *(("optimizer", "adamax"), ("weight_decay", "0.0"), ("schedule", "constant"), ("normalize", "true")),
        *(("reduction", "first-m mean"), ("reduction_m", "3"), ("batch_size", "8"), ("learning_rate", "0.01")),
        *(("code_learning_rate", "5e-05"), ("negatives", "0"), ("tune", "all-but-embeddings"), ("score_scale", "1.0")),
    ):
        assert f"| `{name}` | `{value}` |\n" in card
    assert "Words count nothing beside the network" in card
    config = polyrank.load(tmp_path / "mine").config
    assert (config.normalize, config.reduction, config.reduction_m, config.evidence) == (True, "first-m mean", 3, None)
    assert outcome.result["settings"]["recipe"] == "humeau2020"


def test_adapters_keep_the_rate_of_a_recipe_and_have_a_rate_of_their_own_without(capsys, base: Path, tmp_path) -> None:
    data = write_examples(tmp_path / "data.jsonl")
    sizes = ["--max-context-tokens", 40, "--max-candidate-tokens", 16, "--steps", 1, "--lora-rank", 2, "--json"]
    for given, rate in ((["--recipe", "humeau2020"], 5e-5), ([], 5e-4)):
        fixed = ["--architecture", "bi", "--base", base, "--train", data, "--output", tmp_path / f"{rate}"]
        assert call(capsys, "train", *fixed, *sizes, *given).result["settings"]["learning_rate"] == rate


def test_it_says_what_words_and_scores_count(capsys: Capture, base: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "data.jsonl", orders(560))
    assert train(capsys, base, tmp_path, architecture="poly").status == 0
    card, config = (tmp_path / "mine/README.md").read_text(), polyrank.load(tmp_path / "mine").config
    for name, weight in config.evidence.weights.items():
        assert f"| `{name}` | {weight:g} |\n" in card
    assert f"sigmoid({config.calibration.slope:.4g} * score {config.calibration.intercept:+.4g})" in card
    assert "`polyrank export" not in card, "a poly-encoder cannot be exported"


def test_a_fit_alone_has_a_card_too(capsys: Capture, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", orders(560))
    command = ("train", "--only-evidence", "--base", "lexical", "--train", data, "--output", tmp_path / "words")
    assert call(capsys, *command).status == 0
    card = (tmp_path / "words/README.md").read_text()
    assert header(card)["tags"] == ["polyrank", "lexical", "response-selection"]
    assert "It ranks replies by their words alone" in card


def test_the_checkpoint_is_sent_in_private(capsys: Capture, base: Path, tmp_path: Path, hub: FakeHub) -> None:
    outcome = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat", "--json")
    assert outcome.result["hub"] == f"{hub.address}/ann/chat"
    assert hub.repositories["ann/chat"]["visibility"] == "private"
    files = [path for path in (tmp_path / "mine").iterdir() if path.is_file()]
    assert hub.files["ann/chat"] == {path.name: path.read_bytes() for path in files}
    assert "README.md" in hub.files["ann/chat"]


def test_public_is_said(capsys: Capture, base: Path, tmp_path: Path, hub: FakeHub) -> None:
    outcome = train(capsys, base, tmp_path, "--push-to-hub", "shop/chat", "--public")
    assert outcome.out.splitlines()[-1] == f"sent to {hub.address}/shop/chat"
    assert hub.repositories["shop/chat"]["visibility"] == "public"


def test_what_the_hub_refuses_stays_on_disk(capsys: Capture, base: Path, tmp_path: Path, hub: FakeHub) -> None:
    hub.refuses = 403
    outcome = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat")
    assert outcome.status == 1
    mine = tmp_path / "mine"
    assert outcome.err.splitlines()[-1].startswith("polyrank: the hub refuses (403: ")
    assert outcome.err.endswith(f"; the checkpoint is in {mine}; the same command trains no more and sends it\n")
    assert polyrank.load(mine).config.architecture == "bi"
    hub.refuses = 0
    again = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat")
    assert again.out.splitlines()[-1] == f"sent to {hub.address}/ann/chat"
    assert "look " not in again.err


@pytest.mark.parametrize(("repository", "says"), [
    ("ann/chat/now", "give the repository as OWNER/NAME"),
    ("ann/-chat", "The name cannot start or end with '-' or '.'"),
    ("bob/chat", "the token is for ann, shop"),
])  # fmt: skip
def test_a_wrong_name_is_refused_first(capsys, base: Path, tmp_path, hub: FakeHub, repository: str, says: str) -> None:
    outcome = train(capsys, base, tmp_path, "--push-to-hub", repository)
    assert outcome.status == 2
    assert says in outcome.err
    assert not (tmp_path / "mine").exists()


def test_without_a_token(capsys: Capture, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    told = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat").failure(2)
    assert told == "--push-to-hub needs a token of the hub: `hf auth login`, or the variable HF_TOKEN"


def test_a_token_that_the_hub_does_not_know(capsys, base: Path, tmp_path: Path, hub: FakeHub, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    told = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat").failure()
    assert told.startswith("the hub refuses (401: ")


def test_offline(capsys: Capture, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    told = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat").failure()
    advice = "train without --push-to-hub, or when it can be reached"
    assert told == f"HF_HUB_OFFLINE forbids asking the hub; unset it, or {advice}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    huggingface_hub.close_session()
    told = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat").failure()
    huggingface_hub.close_session()
    assert told.startswith("the hub cannot be reached (")
    assert told.endswith(f"; {advice}")


def test_an_adapter_of_a_local_base_stays_here(capsys: Capture, base: Path, tmp_path: Path) -> None:
    told = train(capsys, base, tmp_path, "--push-to-hub", "ann/chat", "--lora-rank", 2).failure(2)
    assert told.startswith(f"--push-to-hub: the checkpoint would refer to the weights in {base}, which nobody else has")
    checkpoint = write_checkpoint(tmp_path, "based", 0, architecture="bi", weights="base")
    data = tmp_path / "data.jsonl"
    fit = ("train", "--only-calibration", "--base", checkpoint, "--train", data, "--output", tmp_path / "mine")
    told = call(capsys, *fit, "--push-to-hub", "ann/chat").failure(2)
    assert f"would refer to the weights in {tmp_path}/based-base" in told
