"""Stores that several unit tests begin with."""

import shutil
from pathlib import Path

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store.generation_store import GenerationStore


@pytest.fixture(scope="session")
def _four_generations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("four")
    for _ in range(4):
        build(HashEncoder(), pool(5), root, BuildOptions(activate=False))
    return root


@pytest.fixture
def store(_four_generations: Path, tmp_path: Path) -> GenerationStore:
    """Four generations, none active."""
    shutil.copytree(_four_generations, tmp_path / "store")
    return GenerationStore(tmp_path / "store")
