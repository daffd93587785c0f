"""Links between pages lead somewhere, and so do mentions of pages in the code."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "checkpoints", "examples", "benchmarks")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("clients/*/*.md")),
    *(page for each in FOLDERS for page in sorted((ROOT / each).rglob("*.md"))),
]
SOURCES = ("model", "index_builder", "service", "benchmarks", "checkpoints", "docker", "examples", "tests")
PAGE, HEADING = r"(?P<page>docs/[\w/.-]+?\.md)", r'"(?P<heading>[^"\n]+)"'
TEXTS = {".md", ".py", ".sh", ".yml", ".json"}


def _prose(page: Path) -> str:
    """The page without fenced and inline code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", "", code[0]), text)


def _anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def _links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if not re.match(r"\w+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in _links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in _anchors(found), f"{target}: no such heading"


def test_pages_link_to_each_other() -> None:
    """A page that nothing links to is never found."""
    linked = {(page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in _links(page)}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page not in linked} == set()


@cache
def _files() -> list[tuple[Path, str]]:
    """What may name a page, and its text."""
    files = [file for folder in SOURCES for file in (ROOT / folder).rglob("*") if file.suffix in TEXTS]
    files += [*ROOT.glob("*.md"), *(ROOT / name for name in ("Makefile", "docker-compose.yml"))]
    return [(file.relative_to(ROOT), file.read_text(encoding="utf-8")) for file in files]


def test_pages_that_the_code_names_exist() -> None:
    named = {
        (file, name) for file, text in _files() for name in re.findall(r"\bdocs/[\w/.-]+?\.(?:md|json|svg)\b", text)
    }
    assert [f"{file}: {name}" for file, name in sorted(named) if not (ROOT / name).exists()] == []


def test_headings_that_the_code_names_exist() -> None:
    named = {
        (file, found["page"], found["heading"])
        for file, text in _files()
        for form in (rf"{PAGE}, {HEADING}", rf"{HEADING} in {PAGE}")
        for found in re.finditer(form, text)
    }
    assert named
    missing = [
        f"{file}: {page}, {heading}"
        for file, page, heading in sorted(named)
        if not re.search(rf"^#+ {re.escape(heading)}$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []
