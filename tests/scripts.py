"""Scripts of the repository that belong to no package."""

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(path: str) -> ModuleType:
    """The script at a path in the repository, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parents[1] / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
