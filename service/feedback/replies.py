"""What the replies of recorded rankings say: a log names them by their ids, and the generations hold their texts."""

import math
from collections.abc import Iterable
from pathlib import Path

from polyrank.index_builder.errors import GenerationError
from polyrank.index_builder.generation.candidates import CANDIDATES_FILE, CandidateTable
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.local import IDS_FILE, IdIndex
from polyrank.service.feedback.records import Ranking, Shown


class _Opened:
    """The tables of a generation, and what updates made of candidates: for each id revisions, with None for a removal.

    Files never change, so a candidate that an update replaced is still found as a ranking has shown it.
    """

    def __init__(self, store: GenerationStore, generation: str) -> None:
        manifest = store.manifest(generation)
        paths = [store.path(generation) / manifest.directory(part) for part in range(len(manifest.parts))]
        self._parts = [(IdIndex(path / IDS_FILE), CandidateTable(path / CANDIDATES_FILE)) for path in paths]
        self._changes: dict[str, list[tuple[int, Candidate | None]]] = {}
        for update in store.updates.of(manifest).read():
            for gone in update.deletes:
                self._changes.setdefault(gone, []).append((update.revision, None))
            for candidate in update.upserts:
                self._changes.setdefault(candidate.id, []).append((update.revision, candidate))

    def find(self, candidate_id: str, revision: float) -> Candidate | None:
        """Return a candidate as it was at a revision."""
        for changed_at, candidate in reversed(self._changes.get(candidate_id, [])):
            if changed_at <= revision:
                return candidate
        for ids, table in self._parts:
            [row] = ids.rows([candidate_id]).tolist()
            if row >= 0 and (found := table.rows([row])[0]).id == candidate_id:
                return found
        return None


class Replies:
    """Finds shown replies in the generation that answered, or in the active one if that is gone."""

    def __init__(self, root: Path) -> None:
        """`root` is the store's directory."""
        self._store = GenerationStore(root)
        self._active = self._store.current_or_none()
        self._opened: dict[str, _Opened | None] = {}

    def find(self, ranking: Ranking, replies: Iterable[Shown]) -> list[Candidate | None]:
        """Return the candidates, each None if it is not found; without an id, where it was sent along without one."""
        pool, revision = self._open(ranking.generation), float(ranking.revision)
        if pool is None and self._active is not None:
            pool, revision = self._open(self._active), math.inf
        found: list[Candidate | None] = []
        for each in replies:
            if each.text is not None:
                found.append(Candidate(each.id or "", each.text))
            else:
                found.append(None if each.id is None or pool is None else pool.find(each.id, revision))
        return found

    def _open(self, generation: str) -> _Opened | None:
        if generation not in self._opened:
            try:
                self._opened[generation] = _Opened(self._store, generation)
            except (GenerationError, OSError, ValueError):  # it is gone, or damaged
                self._opened[generation] = None
        return self._opened[generation]
