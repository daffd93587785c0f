"""Models named on the command line: what is wrong with them is told as what it is."""

import os
from pathlib import Path

import pytest
from command_line import ended, forked, write_rows
from tiny import write_checkpoint
from warm_python import WarmPython

from polyrank.model.errors import InvalidInput, WrongKind
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.runners import Runner
from polyrank.model.rankers.load import load_cross, load_vector_ranker
from polyrank.model.registry import names_in_words
from polyrank.service.cli.arguments import chosen_runner, loaded, reference_runner, require_writable
from polyrank.service.cli.output import UsageError


def test_only_a_model_of_the_wrong_kind_is_told_with_the_flag_that_names_it(tmp_path: Path, monkeypatch) -> None:
    cross = str(write_checkpoint(tmp_path, "cross", seed=0, architecture="cross"))
    bi = str(write_checkpoint(tmp_path, "bi", seed=0, architecture="bi"))
    with pytest.raises(WrongKind, match=rf"give a {names_in_words(retrieves=True)}, and this one as --reranker$"):
        loaded(load_vector_ranker, cross, after=", and this one as --reranker")
    with pytest.raises(WrongKind, match=r"^--reranker .*; give a cross- or uni-encoder$"):
        loaded(load_cross, bi, before="--reranker ")
    monkeypatch.setattr(openvino_backend, "is_installed", lambda: False)
    needed = r"^the back-end openvino needs the package openvino: pip install openvino, or use torch$"
    with pytest.raises(InvalidInput, match=needed):
        loaded(load_vector_ranker, bi, Runner("openvino", "float32"), after=", and this one as --reranker")
    with pytest.raises(InvalidInput, match=needed):
        loaded(load_cross, cross, Runner("openvino", "float32"), "--reranker ")


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(UsageError, match="is no plain file"):
            require_writable("--report", path, ())
    require_writable("--report", tmp_path / "new", ())


def test_a_flag_goes_before_the_environment_and_that_before_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_BACKEND", "openvino")
    monkeypatch.setenv("POLYRANK_PRECISION", "int8")
    assert chosen_runner("torch", "bfloat16") == ("torch", "bfloat16")
    assert chosen_runner() == ("openvino", "int8")
    monkeypatch.delenv("POLYRANK_BACKEND")
    monkeypatch.delenv("POLYRANK_PRECISION")
    assert chosen_runner() == ("auto", "auto")


def test_the_reference_is_what_runs_where_nothing_is_asked_for() -> None:
    assert reference_runner(None, None) == ("torch", "float32")
    assert reference_runner(None, "bfloat16") == ("torch", "bfloat16")
    assert reference_runner("openvino", None) == ("openvino", "float32")
    assert reference_runner(None, "int8") == ("openvino", "int8"), "torch does not compute in it"


def test_why_models_are_not_kept_is_told_on_standard_error(warm_python: WarmPython, tmp_path: Path) -> None:
    bi = write_checkpoint(tmp_path, "bi", seed=0, architecture="bi")
    data = write_rows(tmp_path / "data.jsonl", [{"context": ["w1"], "response": "w2", "candidates": ["w2", "w3"]}])
    caches = {"POLYRANK_COMPILED_CACHE_DIR": str(data), "POLYRANK_COMPILED_CACHE_MB": "1"}
    outcome = ended(forked(warm_python, "evaluate", "--model", bi, "--data", data, "--backend", "openvino", **caches))
    assert outcome.status == 0
    where = f"compiled models cannot be kept: every start compiles them where={data}/compiled why=Not a directory"
    assert f"WARNING polyrank.model.inference.disk_cache {where}\n" in outcome.err
