"""The files in which serving processes count, so that each of them can answer for all.

prometheus_client maps files of a directory. Where a disk or /dev/shm fills, writing to such a map kills the process
(SIGBUS), and whatever cleans temporary directories removes them. So on Linux the files are memory without a name
(memfd), which every process inherits from the parent. The directory holds links to them only. It can be made again at
any time, and nothing that was counted is lost.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, get_args

from polyrank.service.observe.metrics import Mode

_GAUGES: Final = tuple(f"gauge_{mode}" for mode in get_args(Mode))
# The files of a process, as prometheus_client names them.
KINDS: Final = ("counter", "histogram", *_GAUGES)
# prometheus_client's own first size, which it doubles where there is more to count. Untouched pages take no memory.
_BYTES: Final = 1 << 16


class MetricFiles:
    """The files of so many processes; a process is named by its slot, so that its successor goes on with its counters.

    Attributes:
        directory: where prometheus_client is to look for them.
        descriptors: to be inherited by every process, under the same numbers.
    """

    def __init__(self, directory: Path, slots: int) -> None:
        self.directory = directory
        names = [f"{kind}_{slot}.db" for slot in range(slots) for kind in KINDS]
        self._files = {name: os.memfd_create(name) for name in names} if hasattr(os, "memfd_create") else {}
        for descriptor in self.descriptors:
            os.truncate(descriptor, _BYTES)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of all files; none where the system has no such memory, and the files are plain ones."""
        return list(self._files.values())

    def link(self) -> None:
        """Make the directory and the links in it, as far as they are missing or wrong.

        Raises:
            OSError: that cannot be done, or something of another user stands in the directory's place.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "made by another user, or a link; remove it", str(self.directory))
        for name, descriptor in self._files.items():
            path, target = self.directory / name, f"/proc/self/fd/{descriptor}"
            if not path.is_symlink() or os.readlink(path) != target:
                path.unlink(missing_ok=True)
                path.symlink_to(target)

    def forget_gauges(self, slot: int) -> None:
        """Forget what a process that has ended showed of itself; what it counted stays."""
        self.link()
        for kind in _GAUGES:
            path = self.directory / f"{kind}_{slot}.db"
            if path.exists():
                with path.open("r+b") as file:
                    file.write(bytes(8))  # how many bytes are used; prometheus_client has no call for it

    def close(self) -> None:
        """Give the memory back, once no process holds it any more."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@contextmanager
def metric_files(slots: int) -> Iterator[MetricFiles]:
    """Keep the files for the block, in a temporary directory.

    Raises:
        OSError: there is no room even for that.
    """
    with TemporaryDirectory(prefix="polyrank-metrics-", ignore_cleanup_errors=True) as directory:
        files = MetricFiles(Path(directory), slots)
        try:
            files.link()
            yield files
        finally:
            files.close()
