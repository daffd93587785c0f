"""Paths that a client names: only below a root that the operator has set."""

from pathlib import Path

from polyrank.model.errors import InvalidInput
from polyrank.service.errors import NotConfigured


def confined(root: Path | None, given: str, field: str) -> Path:
    """Resolve a client's path below a root.

    Args:
        root: the setting `<field>_root`.
        given: relative to the root; links are followed before the check.
        field: the request's field, for messages.

    Raises:
        NotConfigured: the root is not set.
        InvalidInput: the path leads out of the root, or to nothing.
    """
    if root is None:
        setting = f"{field}_root"
        raise NotConfigured(f"{field}: this server reads none; start it with the setting {setting}")
    try:
        base = root.resolve()
        path = (base / given).resolve()
        if path != base and path.is_relative_to(base) and path.exists():
            return path
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL byte
        pass
    raise InvalidInput(f"{field}: there is no {given[:200]!r} under the server's {field} root")
