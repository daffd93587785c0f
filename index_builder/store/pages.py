"""The candidates of a snapshot, page after page, in the order of their rows.

A row keeps its number as long as its generation is used (snapshot.py), so a page that begins at a row leaves out
nothing and repeats nothing, whatever updates come between two pages. An update puts its candidate at the end: if it was
listed before, it is listed there again.

A page looks at a bounded number of rows. With a filter that lets few through it holds fewer candidates than asked for.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from polyrank.index_builder.generation.candidates import PART_ROWS
from polyrank.index_builder.generation.filters import matching_places
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.text.reading import Steps

# Parts of PART_ROWS rows that one page looks at.
MOST_PARTS = 16
# Texts and metadata of one page; what exceeds it is the last of the page.
MOST_BYTES = 8 << 20


class Page(NamedTuple):
    """Candidates, and the row at which the next page begins; None: there are no more."""

    candidates: list[Candidate]
    next_row: int | None


def page(snapshot: Snapshot, start: int, limit: int, filter_: Mapping[str, Any] | None = None) -> Steps[Page]:
    """Return up to `limit` candidates from a row on that match a filter, and pause after every part."""
    hits: list[Candidate] = []
    row, room = start, MOST_BYTES
    for _ in range(MOST_PARTS):
        if row >= snapshot.row_end:
            return Page(hits, None)
        part_end, most = min(row + PART_ROWS, snapshot.row_end), limit - len(hits)
        rows = snapshot.rows_between(row, part_end)
        rows = rows[:most] if filter_ is None else rows
        candidates = snapshot.candidates(rows)
        if filter_ is not None:
            places = matching_places([candidate.metadata for candidate in candidates], filter_)[:most].tolist()
            rows, candidates = rows[places], [candidates[place] for place in places]
        for at, candidate in zip(rows.tolist(), candidates, strict=True):
            hits.append(candidate)
            room -= len(candidate.text.encode()) + len(orjson.dumps(candidate.metadata))
            if len(hits) == limit or room <= 0:
                return Page(hits, at + 1 if at + 1 < snapshot.row_end else None)
        row = part_end
        yield
    return Page(hits, row if row < snapshot.row_end else None)
