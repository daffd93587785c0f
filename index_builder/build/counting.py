"""A stage of a build: count the words of the candidate tables, and write an inverted index for each part.

The texts are read twice: once for how common each word is, once to write every entry to its place. Memory grows with
the distinct words, and by 12 bytes a candidate while the hashes of the texts are sorted.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.generation.generation import CANDIDATES_FILE
from polyrank.index_builder.generation.words import evidence_of, new_files, write_statistics
from polyrank.model.evidence.joining import TableInParts
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable

# Texts that are counted together take 9 to 28 bytes of memory for each letter.
_LETTERS_AT_ONCE = 1 << 20
_TEXTS_AT_ONCE = 8192


def count_pool(model: Path, directories: Sequence[Path], statistics: Statistics | None, clock: StageClock) -> None:
    """Write the words of the candidate tables of a build's parts, if they count for the model.

    Args:
        model: its directory.
        directories: those of the parts.
        statistics: those by which words count; None: those of all tables together.
        clock: is told of both readings.
    """
    if evidence_of(model) is None:
        return
    tables = [CandidateTable(directory / CANDIDATES_FILE) for directory in directories]
    clock("words", 0, 2 * sum(map(len, tables)))
    counted = [_statistics_of(table, clock) for table in tables]
    statistics = statistics or reduce(Statistics.plus, counted)
    for directory, table, own in zip(directories, tables, counted, strict=True):
        tells = statistics.rarity(own.keys) > 0
        files = TableInParts(own.keys[tells], own.frequencies[tells], len(table), new_files(directory))
        for texts in _pieces(table, clock):
            files.add(WordTable.of(texts, statistics))
        files.finished(statistics)
        write_statistics(directory, statistics)


def _statistics_of(table: CandidateTable, clock: StageClock) -> Statistics:
    """Count how common each word is in the texts of a table."""
    return reduce(Statistics.plus, map(Statistics.of, _pieces(table, clock)), Statistics.of([]))


def counted_anew(count: int) -> str:
    """Return what is said of a compaction that counted the words of so many candidates."""
    return f"words were counted anew, in {count} candidates: what they add to scores may have changed"


def _pieces(table: CandidateTable, clock: StageClock) -> Iterator[list[str]]:
    """Yield the texts of a table in order, some at a time, and announce each piece when it was used."""
    piece: list[str] = []
    letters = 0
    for text in (text for _, batch in table.batches() for text in batch):
        piece.append(text)
        letters += len(text)
        if letters >= _LETTERS_AT_ONCE or len(piece) >= _TEXTS_AT_ONCE:
            yield piece
            clock.advance(len(piece))
            piece, letters = [], 0
    if piece:
        yield piece
        clock.advance(len(piece))
