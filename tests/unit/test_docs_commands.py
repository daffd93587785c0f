"""Commands of README and docs are ones that can be pasted: options, make targets, routes, bodies and files exist.

Blocks are not run here: `test_docs_first_hour.py` pastes those of README and tutorial.
"""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from pasted import REPOSITORY, shell_blocks

from polyrank.service.cli import parser

GENERATED = "docs/reference/cli.md"  # help texts
PAGES = sorted(
    page
    for page in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"))
    if page.relative_to(REPOSITORY).as_posix() != GENERATED
)
SEPARATORS = {"|", "&", "&&", "||", ";", ">", "2>", "<", ">>"}


def commands(page: Path) -> list[list[str]]:
    """The words of every command of a page, cut at pipes and the like; "…" stands for more and is left out."""
    found: list[list[str]] = []
    for block in shell_blocks(page.read_text(encoding="utf-8")):
        lines = re.sub(r"(^|\s)#.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE)
        words = shlex.shlex(lines, posix=True, punctuation_chars="|&;<>\n")
        words.whitespace, words.whitespace_split, words.commenters = " \t", True, ""
        command: list[str] = []
        try:
            for word in (*words, "\n"):
                if word in SEPARATORS or not word.strip():
                    found += [command] if command else []
                    command = []
                elif word != "…" and not (not command and re.fullmatch(r"\w+=\S*", word)):
                    command.append(word)
        except ValueError:  # prose or a table that is no shell
            continue
    return found


PARSER = parser()
CALLS = [(page.relative_to(REPOSITORY).as_posix(), command) for page in PAGES for command in commands(page)]


def of(program: str) -> list[tuple[str, list[str]]]:
    return [(page, command[1:]) for page, command in CALLS if command[0] == program]


def names(calls: list[tuple[str, list[str]]]) -> list[str]:
    return [f"{at}, {page}: {' '.join(words)[:60]}" for at, (page, words) in enumerate(calls)]


@pytest.mark.parametrize(("page", "words"), of("polyrank"), ids=names(of("polyrank")))
def test_polyrank_takes_these_options(page: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        PARSER.parse_args(words)
    except SystemExit as end:
        if end.code:  # --help ends without one
            pytest.fail(f"{page}: {capsys.readouterr().err}")


def test_adapters_of_our_checkpoints_are_trained_on_in_their_rank() -> None:
    given = [PARSER.parse_args(words) for _, words in of("polyrank") if {"train", "--lora-rank"} <= {*words}]
    ours = [told for told in given if (REPOSITORY / told.base / "polyrank.json").is_file()]
    assert len(ours) > 1
    for told in ours:
        card = json.loads((REPOSITORY / told.base / "polyrank.json").read_bytes())
        assert told.lora_rank == card["training"]["settings"]["lora_rank"], told.base


@pytest.mark.parametrize(("page", "words"), of("make"), ids=names(of("make")))
def test_make_has_these_targets(page: str, words: list[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for target in (word for word in words if "=" not in word):
        assert target in targets, page


@pytest.mark.parametrize(("page", "words"), of("python"), ids=names(of("python")))
def test_python_finds_these_files(page: str, words: list[str]) -> None:
    if words[:1] == ["-m"]:
        module = words[1].replace(".", "/")
        assert not module.startswith("benchmarks") or (REPOSITORY / f"{module}.py").is_file(), page
    elif words and words[0].endswith(".py"):
        assert (REPOSITORY / words[0]).is_file(), page


@pytest.mark.parametrize(("page", "words"), of("curl"), ids=names(of("curl")))
def test_the_service_has_these_routes_and_the_bodies_are_json(page: str, words: list[str]) -> None:
    [url] = [word for word in words if re.match(r"(https?://)?(localhost|127\.0\.0\.1)", word)]
    bodies = [after for flag, after in pairwise(words) if flag in ("-d", "--data", "--json")]
    method = next((after for flag, after in pairwise(words) if flag == "-X"), None)
    if "-G" in words:  # data are the query
        method, bodies = "GET", []
    method = (method or ("POST" if bodies else "GET")).lower()
    path = re.sub(r"^(https?://)?[^/]*", "", url).partition("?")[0]
    routes = json.loads((REPOSITORY / "docs" / "openapi.json").read_bytes())["paths"]
    matching = [route for route in routes if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), path)]
    assert any(method in routes[route] for route in matching), f"{page}: {method} {path}"
    for body in bodies:
        if not body.startswith("@"):
            json.loads(body)


def test_commands_are_found_at_all() -> None:
    assert len(of("polyrank")) > 40
    assert len(of("curl")) > 10
    assert len(of("make")) > 4
    assert len(of("python")) > 20
