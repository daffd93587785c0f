"""How many threads libraries take, in processes of their own."""

import os
import subprocess
import sys

import pytest
import torch
from threadpoolctl import ThreadpoolController

from polyrank.model import threads


def run(code: str, **variables: str) -> str:
    known = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**known, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < (os.cpu_count() or 1), reason="torch takes others' processors, too")
@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "2,1"}], ids=str)
def test_the_usual_number_is_that_of_torch(variables: dict[str, str]) -> None:
    assert int(run("from polyrank.model import threads; print(threads.count())", **variables)) == int(
        run("import torch; print(torch.get_num_threads())", **variables)
    )


def test_there_are_as_many_as_cores_or_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_cores", lambda: 4)
    for variable, number in (("2", 2), ("8", 4), ("3,1", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        assert threads.usual() == number


def test_a_number_that_is_none_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    usual = threads.usual()
    for value in ("", "0", "-1", "all"):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert threads.usual() == usual


def test_who_set_the_number_of_torch_has_set_it_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert threads.count() == 7


def test_one_thread_in_a_block_and_behind_it_as_many_as_before() -> None:
    blas = ThreadpoolController().select(threading_layer="pthreads")

    def numbers() -> tuple[int, int, int, set[int]]:
        return threads.count(), threads.shares(), torch.get_num_threads(), {each["num_threads"] for each in blas.info()}

    with blas.limit(limits=2):
        before = numbers()
        with threads.only_one():
            assert numbers() == (1, 1, 1, {1})
        assert numbers() == before
        assert before[-1] == {2}


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_what_is_chosen_holds_for_torch_and_numpys_products_take_one(before: bool) -> None:
    lines = ["from threadpoolctl import threadpool_info", "import numpy", "from polyrank.model import threads"]
    told = ["threads.choose(3)", "import torch"]
    code = "\n".join([*lines, *(told[::-1] if before else [*told, "threads.tell_torch()"])])
    found = run(
        f"{code}\nprint(threads.count(), torch.get_num_threads())\nprint(*{{each['num_threads'] for each in "
        "threadpool_info() if each['user_api'] == 'blas'})"
    )
    assert found.split() == ["3", "3", "1"]
