"""The file that a command's `--output` names."""

from collections.abc import Iterable
from pathlib import Path

from polyrank.service.cli.output import UsageError


def require_writable(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse, before the work, a file that could not be written after it, or that is one of the command's inputs.

    Raises UsageError.
    """
    if output.is_dir():
        raise UsageError(f"--output {output} is a directory; name a file")
    if not output.parent.is_dir():
        raise UsageError(f"--output {output}: there is no directory {output.parent}")
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"--output {output} is an input too; name another file")
