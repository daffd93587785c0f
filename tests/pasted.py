"""Shell blocks of README and docs."""

import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^([ ]*)```\w*\n.*?^\1```$", re.DOTALL | re.MULTILINE)
_FENCED_OF = r"^([ ]*)```(?:{})\n(.*?)^\1```$"


def fenced(text: str, kinds: str = "sh|bash|shell") -> Iterator[str]:
    """What stands in blocks of these kinds."""
    for found in re.finditer(_FENCED_OF.format(kinds), text, re.DOTALL | re.MULTILINE):
        yield re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)


def shell_blocks(text: str) -> Iterator[str]:
    """Shell blocks, and indented ones outside of any fence."""
    yield from fenced(text)
    outside = "\n".join(_outside(text))
    yield from re.findall(r"(?:^    .*\n)+", outside, re.MULTILINE)


def _outside(text: str) -> Iterator[str]:
    end = 0
    for fence in FENCED.finditer(text):
        yield text[end : fence.start()]
        end = fence.end()
    yield text[end:]
