"""The package as a whole: what importing it costs, and its examples."""

import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import model

MODULES = [f"model.{module.name}" for module in iter_modules(model.__path__)]


@pytest.mark.parametrize(
    "imports", ["model", "model.errors", "model.config, model.errors", "index_builder.errors, model"]
)
def test_importing_it_is_light(imports: str) -> None:
    """Code that needs only error types or the config must not wait seconds for torch."""
    heavy = "{'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'numpy'}"
    code = f"import sys, {imports}; print(sorted({heavy} & set(sys.modules)))"
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(model.__path__[0]).parent
    )
    assert made.stdout.strip() == "[]"


def test_the_public_names() -> None:
    assert sorted(model.__all__) == model.__all__
    for name in model.__all__:
        assert getattr(model, name) is getattr(import_module(getattr(model, name).__module__), name)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'model' has no attribute 'nonsense'"):
        _ = model.nonsense


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(import_module(name), report=True).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    found = {name for name in MODULES for test in finder.find(import_module(name)) if test.examples}
    assert {"model.attention", "model.batching"} <= found
