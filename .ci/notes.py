"""Print what CHANGELOG.md says of a version, as the notes of its release: `python3 .ci/notes.py v0.1.0`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Where the version stands, besides the changelog.
VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "src/polyrank/__init__.py": r'^__version__ = "(.+)"$',
    "docker/helm/Chart.yaml": r"^appVersion: (.+)$",
    "clients/typescript/package.json": r'^  "version": "(.+)",$',
}


def notes(tag: str, root: Path = ROOT) -> str:
    """The text below the version's heading, up to the next version.

    Raises:
        ValueError: the tag is not `v` and a version, another version stands in the files, or the changelog has no
            dated heading for it.
    """
    version = re.fullmatch(r"v(\d+\.\d+\.\d+\S*)", tag)
    if version is None:
        raise ValueError(f"{tag}: a tag of a release is v and its version, such as v0.1.0")
    for name, pattern in VERSIONS.items():
        [told] = re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if told != version[1]:
            raise ValueError(f"{tag}: {name} says {told}; set the version there, and tag that commit")
    heading = rf"^## \[{re.escape(version[1])}\] - \d{{4}}-\d\d-\d\d\n"
    parts = re.split(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
    if len(parts) != 2:
        raise ValueError(f"{tag}: CHANGELOG.md has no heading `## [{version[1]}] - YYYY-MM-DD`")
    return re.split(r"^## ", parts[1], maxsplit=1, flags=re.MULTILINE)[0].strip() + "\n"


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1]), end="")
    except ValueError as error:
        sys.exit(str(error))
