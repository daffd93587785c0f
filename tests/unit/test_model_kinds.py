"""Loading a model of the kind that is needed, and what is said of one of the other."""

from pathlib import Path

import pytest
from tiny import write_base, write_checkpoint

from polyrank.model.errors import InvalidInput, ModelNotFound
from polyrank.model.rankers.load import load_cross, load_late
from polyrank.model.rankers.networks import CrossRanker, LateRanker
from polyrank.model.registry import names_in_words


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each kind, by its name, and a base model."""
    parent = tmp_path_factory.mktemp("models")
    for seed, kind in enumerate(("bi", "poly", "cross")):
        write_checkpoint(parent, kind, seed, architecture=kind)
    write_base(parent / "base", 3)
    return parent


@pytest.mark.parametrize(("name", "architecture"), [("bi", "bi"), ("poly", "poly"), ("base", "bi")])
def test_late_models(models: Path, name: str, architecture: str) -> None:
    loaded = load_late(models / name)
    assert isinstance(loaded, LateRanker)
    assert (loaded.name, loaded.architecture) == (str(models / name), architecture)
    with pytest.raises(InvalidInput) as refused:
        load_cross(models / name)
    assert str(refused.value) == f"{models / name} is a {architecture}-encoder; give a cross-encoder"


def test_cross_models(models: Path) -> None:
    loaded = load_cross(str(models / "cross"))
    assert isinstance(loaded, CrossRanker)
    assert loaded.name == str(models / "cross")
    with pytest.raises(InvalidInput) as refused:
        load_late(models / "cross")
    what = f"is a cross-encoder, which has no candidate embeddings; give a {names_in_words(retrieves=True)}"
    assert str(refused.value) == f"{models / 'cross'} {what}"


def test_no_model(models: Path) -> None:
    for load in (load_late, load_cross):
        with pytest.raises(ModelNotFound, match="none"):
            load(models / "none")
