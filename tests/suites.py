"""Which tests `make test` leaves to `make test-slow`."""

from collections.abc import Collection

SLOW_FOLDERS = ("integration", "property")  # whole processes, and many random cases


def is_slow(folder: str, marks: Collection[str]) -> bool:
    """Whether a test with such marks is slow; in some folders of tests/ each is that does not say `quick`."""
    return "slow" in marks or (folder in SLOW_FOLDERS and "quick" not in marks)
