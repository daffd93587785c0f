"""A stage of a build: count the words of the candidate table, and write the inverted index of them.

The texts are read twice: once for how common each word is, once to write every entry to its place. Memory grows with
the distinct words, and by 12 bytes a candidate while the hashes of the texts are sorted.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.generation.generation import CANDIDATES_FILE, MODEL_DIRECTORY
from polyrank.index_builder.generation.words import evidence_of, new_files, write_statistics
from polyrank.model.lexical.table import TableInParts, WordTable
from polyrank.model.lexical.words import Statistics

# Texts that are counted together take 9 to 28 bytes of memory for each letter.
_LETTERS_AT_ONCE = 1 << 20
_TEXTS_AT_ONCE = 8192


def count_pool(directory: Path, statistics: Statistics | None, clock: StageClock) -> None:
    """Write the words of the candidate table in the build's directory, if they count for the model that lies there.

    `statistics` are those by which words count; None: those of the table itself.
    """
    if evidence_of(directory / MODEL_DIRECTORY) is None:
        return
    table = CandidateTable(directory / CANDIDATES_FILE)
    clock("words", 0, 2 * len(table))
    counted = statistics_of(texts_of(table), clock)
    statistics = statistics or counted
    tells = statistics.rarity(counted.keys) > 0
    files = TableInParts(counted.keys[tells], counted.frequencies[tells], len(table), new_files(directory))
    for texts in _parts(texts_of(table), clock):
        files.add(WordTable.of(texts, statistics))
    files.finished(statistics)
    write_statistics(directory, statistics)


def statistics_of(texts: Iterable[str], clock: StageClock) -> Statistics:
    """Count how common each word is in texts."""
    return reduce(Statistics.plus, map(Statistics.of, _parts(texts, clock)), Statistics.of([]))


def counted_anew(count: int) -> str:
    """Return what is said of a compaction that counted the words of so many candidates."""
    return f"words were counted anew, in {count} candidates: what they add to scores may have changed"


def texts_of(table: CandidateTable) -> Iterator[str]:
    """Yield the texts of a table in their order."""
    return (text for _, batch in table.batches() for text in batch)


def _parts(texts: Iterable[str], clock: StageClock) -> Iterator[list[str]]:
    """Yield the texts in order, some at a time, and announce each part when it was used."""
    part: list[str] = []
    letters = 0
    for text in texts:
        part.append(text)
        letters += len(text)
        if letters >= _LETTERS_AT_ONCE or len(part) >= _TEXTS_AT_ONCE:
            yield part
            clock.advance(len(part))
            part, letters = [], 0
    if part:
        yield part
        clock.advance(len(part))
