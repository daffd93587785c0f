"""An architecture that is one file outside the packages is trained, measured, built, served and explained."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripts
from command_line import call, write_rows
from in_process import TestClient
from tiny import write_base
from tiny_training import rows, write_examples
from toy_architecture import NAME, ROW, ToyConfig, ToyEncoder

import polyrank
from polyrank.model.architectures.vector import second_stage_unexplained
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import ARCHITECTURES
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

SAID = ["w1 w1", "w20 w30"]
POOL = {f"c{n}": f"w{n % 8} " + " ".join(f"w{(n * 7 + at) % 40}" for at in range(n % 5)) for n in range(30)}
SIZES = ("--max-context-tokens", "40", "--max-candidate-tokens", "16", "--batch-size", "8", "--steps", "60")
QUICKLY = ("--learning-rate", "1e-2", "--warmup-steps", "5", "--schedule", "constant", "--dropout", "0")
QUICKLY += ("--precision", "no")


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    ARCHITECTURES[NAME] = ROW
    yield
    del ARCHITECTURES[NAME]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `polyrank train` made."""
    from polyrank.service.cli import main

    directory = tmp_path_factory.mktemp(NAME)
    base, data = write_base(directory / "base", 3), write_examples(directory / "examples.jsonl")
    command = ["train", "--architecture", NAME, "--base", str(base), "--train", str(data), *QUICKLY]
    assert main([*command, "--best-products", "3", "--output", str(directory / "out"), *SIZES]) == 0
    return directory / "out"


@pytest.fixture(scope="module")
def store(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `polyrank build` made of it."""
    from polyrank.service.cli import main

    root = tmp_path_factory.mktemp("store")
    pool = write_rows(root / "pool.jsonl", [{"id": id, "text": text} for id, text in POOL.items()])
    model = ["--model", str(trained), "--dtype", "float32", "--backend", "torch", "--precision", "float32"]
    assert main(["build", *model, "--pool", str(pool), "--store", str(root / "store")]) == 0
    return root / "store"


def served(store: Path, tmp_path: Path, backend: str) -> TestClient:
    shutil.copytree(store, tmp_path / "store")
    return TestClient(create_app(Settings(store=tmp_path / "store", threads=1, backend=backend, precision="float32")))


def test_it_is_trained_with_its_option_and_learns(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = read_config(trained / CONFIG_FILE)
    assert config.own == ToyConfig(best=3)
    assert json.loads((trained / CONFIG_FILE).read_text())[NAME] == {"best": 3}
    assert config.training["settings"]["best_products"] == 3
    ranker = polyrank.load(trained)
    assert isinstance(ranker, VectorRanker)
    assert isinstance(ranker.encoder, ToyEncoder)
    assert ranker.rank(SAID, ["w4", "w5", "w6", "w7"])[0][0] == 1, "the reply follows from the context's first word"
    lists = [{**row, "negatives": sorted({"w4", "w5", "w6", "w7"} - {row["response"]})} for row in rows(16)]
    data = write_rows(trained.parent / "lists.jsonl", lists)
    assert call(capsys, "evaluate", "--model", trained, "--data", data, "--json").result["recall@1"] > 0.9


def test_what_it_cannot_do_is_refused(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, data = trained.parent / "base", trained.parent / "examples.jsonl"
    command = ("train", "--base", base, "--train", data, "--output", tmp_path / "no", "--architecture")
    assert "best-products is for toy" in call(capsys, *command, "mix", "--best-products", 3).failure(2)
    assert "must be a whole number from 1 to 50" in call(capsys, *command, NAME, "--best-products", 51).misuse
    assert "task classify is for" in call(capsys, *command, NAME, "--task", "classify").failure(2)
    said = call(capsys, "export", trained, "--to", "sentence-transformers", "--output", tmp_path / "x")
    assert ROW.beyond_vectors in said.err
    assert said.status != 0
    damaged = json.loads((trained / CONFIG_FILE).read_text()) | {NAME: {"best": 0}}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(damaged))
    with pytest.raises(CheckpointInvalid, match=r"toy\.best must be a whole number from 1 to 50"):
        read_config(tmp_path / CONFIG_FILE)


def test_its_name_and_its_option_are_where_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, "train", "--help").out
    assert f",{NAME}}}" in shown
    assert "--best-products K" in shown
    assert "toy: best products that count; default: 2" in " ".join(shown.split())
    pages = scripts.loaded("docs/generate.py")
    assert "--best-products K" in pages.command_help()
    described = pages._app().openapi()["components"]["schemas"]["ModelOut"]["properties"]["architecture"]
    assert NAME in described["enum"]


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_a_server_ranks_as_rank_does_and_explains_every_score(
    trained: Path, store: Path, tmp_path: Path, backend: str
) -> None:
    ids = list(POOL)
    wanted = {ids[at]: score for at, score in polyrank.load(trained).rank(SAID, [*POOL.values()])}
    with served(store, tmp_path, backend) as client:
        for more in ({"exact": True}, {"candidates": [{"id": id, "text": text} for id, text in POOL.items()]}):
            answer = ask(client, "/rank", top_k=99, **more)
            assert {each["id"]: each["score"] for each in answer["results"]} == pytest.approx(wanted, abs=1e-4)
        assert answer["model"]["architecture"] == NAME
        assert client.get("/index").json()["active"]["late"] == {"dim": 16, "count": None}, "a row for each token"
        told = ask(client, "/explain", candidates=[{"id": id} for id in ids[:6]], pairs=True)
        assert told["unexplained"] == []
        for each in told["candidates"]:
            assert each["explained"] == pytest.approx(wanted[each["id"]], abs=1e-4)
            assert sum(value != 0 for row in each["pairs"] for value in row) == 3
        assert client.put("/index/candidates", json=[{"id": "new", "text": "w5"}]).status_code == 200
        assert "new" in [each["id"] for each in ask(client, "/rank", top_k=99, exact=True)["results"]]


def test_what_it_does_not_explain_is_told_with_its_reason(store: Path, tmp_path: Path, monkeypatch) -> None:
    why = "nobody took the products apart"
    monkeypatch.setattr(ToyEncoder, "unexplained", lambda *_: second_stage_unexplained(why, False))
    monkeypatch.setattr(ToyEncoder, "explained_pairs", lambda *_: None)
    with served(store, tmp_path, "torch") as client:
        told = ask(client, "/explain", candidates=[{"id": "c1"}], pairs=True)
        assert {each["part"]: each["why"] for each in told["unexplained"]} == dict.fromkeys(
            ("tokens", "reply_tokens", "second_stage"), why
        )
        assert [(each["tokens"], each["pairs"]) for each in told["candidates"]] == [(None, None)]


def ask(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json={"context": SAID, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_is_kept_compiled_depends_on_its_file(trained: Path, tmp_path: Path, monkeypatch) -> None:
    from polyrank.model.inference.compiler import code_outside

    before = code_outside()
    changed = tmp_path / "toy_changed.py"
    source = Path(sys.modules[ToyEncoder.__module__].__file__ or "").read_text()
    changed.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ARCHITECTURES, NAME, ROW.__class__("toy_changed:ToyEncoder", options=ToyConfig))
    assert code_outside() == before
    changed.write_text(source + "# another network\n")
    assert code_outside() != before
