"""The notes of a release are the changelog's section of its version, and a tag that does not fit is refused."""

import shutil
from pathlib import Path
from types import ModuleType

import pytest
import scripts

from polyrank import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripts.loaded(".ci/notes.py")


@pytest.fixture
def released(script: ModuleType, tmp_path: Path) -> Path:
    """A copy of this repository's versions, and a changelog of three of them."""
    for name in script.VERSIONS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    sections = [f"## [Unreleased]\n\n- Soon.\n\n## [{__version__}] - 2026-01-02", "### Added\n\n- This.", "## [0.0.1]"]
    (tmp_path / "CHANGELOG.md").write_text("\n\n".join(["# Changelog", *sections, "- Before."]), encoding="utf-8")
    return tmp_path


def test_this_version_can_be_released(script: ModuleType) -> None:
    assert "### Added" in script.notes(f"v{__version__}")


def test_the_notes_are_the_section_of_the_version_alone(script: ModuleType, released: Path) -> None:
    assert script.notes(f"v{__version__}", released) == "### Added\n\n- This.\n"


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "src/polyrank/__init__.py", "docker/helm/Chart.yaml", "clients/typescript/package.json"]
)
def test_another_version_in_a_file_is_refused(script: ModuleType, released: Path, name: str) -> None:
    text = (released / name).read_text(encoding="utf-8")
    assert __version__ in text
    (released / name).write_text(text.replace(__version__, "9.9.9"), encoding="utf-8")
    with pytest.raises(ValueError, match=f"{name} says 9.9.9"):
        script.notes(f"v{__version__}", released)


@pytest.mark.parametrize("tag", ["0.1.0", "v1", "vnext", ""])
def test_a_tag_that_is_no_version_is_refused(script: ModuleType, tag: str) -> None:
    with pytest.raises(ValueError, match="a tag of a release is v and its version"):
        script.notes(tag)


@pytest.mark.parametrize("heading", ["## [9.9.9] - 2026-01-02", f"## {__version__}", f"## [{__version__}]"])
def test_a_version_without_a_dated_heading_is_refused(script: ModuleType, released: Path, heading: str) -> None:
    (released / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n- This.\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no heading"):
        script.notes(f"v{__version__}", released)
