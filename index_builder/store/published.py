"""The published generations of a store, for whoever reads it: list, open, verify, and choose what to serve."""

from pathlib import Path

from polyrank.index_builder.errors import GenerationCorrupt, GenerationError, GenerationNotFound
from polyrank.index_builder.store.generation import Generation, read_manifest
from polyrank.index_builder.store.manifest import Manifest
from polyrank.index_builder.store.pointer import Pointer, is_generation_id
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.updates.updates import Updates


class PublishedGenerations:
    """The generations under a store's root; every method may be called from several threads and processes.

    Args:
        root: the directory.
        needs_matrix: refuse generations whose matrix is missing.

    Attributes:
        updates: what happened to them since they were built.
    """

    def __init__(self, root: Path, *, needs_matrix: bool = True) -> None:
        self.root, self._needs_matrix = root, needs_matrix
        self._generations = root / "generations"
        self._pointer = Pointer(root)
        self.updates = Updates(root)

    def ids(self) -> list[str]:
        """The published generations, oldest first."""
        if not self._generations.is_dir():
            return []
        return sorted(path.name for path in self._generations.iterdir() if is_generation_id(path.name))

    def current(self) -> str | None:
        """The active generation's id; None before the first activation.

        Raises:
            GenerationCorrupt: CURRENT holds something else than an id.
        """
        return self._pointer.current()

    def current_or_none(self) -> str | None:
        """As `current`; None also where CURRENT is damaged."""
        return self._pointer.current_or_none()

    def stamp(self) -> tuple[int, int] | None:
        """What changes whenever a generation is activated, be it the same again; None before the first activation."""
        return self._pointer.stamp()

    def history(self) -> list[str]:
        """The generations a rollback can reach, the first one last."""
        return self._pointer.history(self.ids())

    def path(self, generation: str) -> Path:
        """The directory of a generation.

        Raises:
            GenerationNotFound: the text has not the form of an id.
        """
        if not is_generation_id(generation):
            raise GenerationNotFound(f"{generation[:80]!r} is not the id of a generation")
        return self._generations / generation

    def open(self, generation: str, *, verify: bool = True) -> Generation:
        """Open a generation and check it, and its update log.

        Raises:
            GenerationNotFound, GenerationCorrupt: see `Generation.open` and `UpdateLog.read`.
        """
        opened = Generation.open(self.path(generation), verify=verify, needs_matrix=self._needs_matrix)
        if verify:
            self._check_updates(opened.manifest)
        return opened

    def _check_updates(self, manifest: Manifest) -> None:
        if manifest.id in (self.current_or_none(), *self.history()) and not self.updates.exists(manifest.id):
            raise GenerationCorrupt(
                manifest.id, f"its update log {manifest.id}.log is gone; build again, or restore it"
            )
        try:
            self.updates.of(manifest).catch_up()
        except OSError as error:
            raise GenerationCorrupt(
                manifest.id, f"its update log {manifest.id}.log cannot be read: {error.strerror}"
            ) from error

    def manifest(self, generation: str) -> Manifest:
        """Read what a generation says of itself, without a look at its files.

        Raises:
            GenerationNotFound, GenerationCorrupt: see `Generation.open`.
        """
        return read_manifest(self.path(generation))

    def verify(self, generation: str) -> Manifest:
        """Check every byte of a generation and of its update log.

        Raises:
            GenerationNotFound, GenerationCorrupt: see `open`.
        """
        opened = self.open(generation)
        opened.close()
        return opened.manifest

    def snapshot(self, opened: Generation) -> Snapshot:
        """An open generation as its updates have left it.

        Raises:
            GenerationCorrupt: its update log is damaged.
        """
        return Snapshot(opened).updated(list(self.updates.of(opened.manifest).read()))

    def candidates_to_serve(self) -> list[str]:
        """What may be served, the first one that passes its checks: the active generation, then what stands in for it.

        That are first those that were active before, the latest first; then the others that are older, the newest
        first; last the newer ones, which nobody may have approved. None where nothing was ever activated.
        """
        try:
            current = self.current()
        except GenerationCorrupt:
            current = None
        else:
            if current is None:
                return []
        trusted = [*([current] if current else []), *reversed(self.history())]
        others = list(reversed(self.ids()))
        older = [each for each in others if not trusted or each < trusted[0]]
        return list(dict.fromkeys([*trusted, *older, *others]))

    def open_to_serve(self) -> tuple[Generation, list[tuple[str, str]]]:
        """Open the first of `candidates_to_serve` that passes its checks.

        Returns:
            the generation, and those that were refused before it: (id, reason).

        Raises:
            GenerationNotFound: there is none; says why each was refused.
        """
        refused: list[tuple[str, str]] = []
        try:
            self.current()
        except GenerationCorrupt as error:
            refused.append(("CURRENT", error.reason))
        for generation in self.candidates_to_serve():
            try:
                return self.open(generation), refused
            except GenerationError as error:
                refused.append((generation, str(error)))
        if refused:
            reasons = "; ".join(reason for _, reason in refused)
        elif self.ids():
            reasons = "none is active; run: polyrank store activate"
        else:
            reasons = "it is empty; run: polyrank build"
        raise GenerationNotFound(f"no good generation in {self.root}: {reasons}")
