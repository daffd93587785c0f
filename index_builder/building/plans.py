"""What is asked of a build, what its parts are made of, and what was built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrank.index_builder.building.encoding import VectorSource
from polyrank.index_builder.building.stages import EncodedContext, StageClock
from polyrank.index_builder.generation.generation import Generation, StoredTexts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.slots import Slots
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.measuring import Recall
from polyrank.index_builder.names import AskedOptions
from polyrank.model.lexical.words import Statistics
from polyrank.model.text.language import why_foreign


@dataclass(frozen=True, kw_only=True)
class BuildOptions(AskedOptions):
    """How a pool becomes a generation. For a lexical model the index is "auto" or "exact"."""

    # Real contexts, encoded by the same model. The index is tuned until requests find `min_recall` of their 10 best
    # candidates, by vectors and, where they count, words. Without probes the recall is measured with the pool's own
    # vectors, by vectors alone, and only reported.
    probes: Sequence[EncodedContext] = ()
    # Of the last update that the pool can contain; None: the store's last one when the build begins.
    revision: int | None = None
    copies_vectors: bool = True  # into the Redis, if there is one; else it holds the lease alone


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """A part that was built: its slots' name, its index and recall, and what the user should know of a low recall."""

    name: str
    index: IndexSpec
    recall: Recall
    warning: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What was built."""

    manifest: Manifest
    parts: Sequence[BuiltPart]  # those that were built; a compaction keeps others
    rejected: int  # rows left out; `rejected_log` lists them, or is None if there are none
    rejected_log: Path | None
    truncated: int
    resumed: int
    encoded: int
    reused: int  # candidates whose vectors are those of the active generation
    not_reused: str | None  # why none are, where they could be
    seconds: float
    # The candidates whose words a compaction has counted anew; None: it was none, or words do not count.
    counted: int | None = None

    @property
    def generation(self) -> str:
        return self.manifest.id

    @property
    def count(self) -> int:
        return self.manifest.count

    @property
    def worst(self) -> BuiltPart:
        """The part with the lowest recall."""
        return min(self.parts, key=lambda part: part.recall.at_10)

    @property
    def notes(self) -> list[str]:
        """What the user should know: which index was chosen by which times, a low recall, a strange language, and that
        words count anew.
        """
        is_cut = len(self.manifest.parts) > 1
        parts = [(f"part {part.name}: " if is_cut else "", part) for part in self.parts]
        notes = [f"{name}{note}" for name, part in parts for note in (part.index.why, part.warning) if note]
        notes += [self.not_reused] if self.not_reused else []
        model = self.manifest.model
        if strange := why_foreign(model.name, model.languages, self.manifest.languages):
            notes.append(strange)
        anew = f"words were counted anew, in {self.counted} candidates: what they add to scores may have changed"
        return notes if self.counted is None else [*notes, anew]

    @property
    def reuse_notes(self) -> list[str]:
        """How many texts were encoded, where some were not."""
        if not self.reused:
            return []
        return [f"{self.encoded} texts encoded, {self.reused} candidates keep the vectors that the last generation has"]


@dataclass(frozen=True, slots=True)
class PartPlan:
    """What a part is made of; its candidate table is written, and its order where there are several.

    `earlier`: the part of an earlier generation that is taken as it is; None: it has to be built.
    """

    slots: Slots
    vectors: VectorSource | None
    chosen: IndexSpec | None = None
    earlier: Generation | None = None


@dataclass(frozen=True, slots=True)
class Filled:
    """The parts of a generation whose candidates are known; see `BuildResult` and `Manifest`."""

    parts: Sequence[PartPlan]
    order_end: int
    revision: int
    rejected: int = 0
    rejected_log: Path | None = None
    statistics: Statistics | None = None  # by which words count; None: those of the parts
    copy_of: str | None = None  # the active generation of which this one is a copy; None: it is none
    replaces: bool = True
    stored: StoredTexts | None = None  # what finds texts in the generation before, of the same model and dtype
    not_reused: str | None = None


# Writes the candidate tables into a build's directory, given the path of the log of bad rows, and says what they are.
Fill = Callable[[Path, Path, StageClock], Filled]
