"""Two stores of the same replies with the same vectors: the model of one counts words, that of the other does not."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from polyrank.index_builder.build.pipeline import BuildOptions, build
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, write_config
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.late import LateRanker
from polyrank.model.rankers.load import load_late


class TwoStores(NamedTuple):
    """Their directories."""

    with_words: Path
    without: Path


@contextmanager
def two_stores(model: str, rows: Sequence[Candidate], index: str = "auto") -> Iterator[TwoStores]:
    """Build both stores for the `with` block; each text is encoded once.

    Raises InvalidInput where the model counts no words.
    """
    ranker, options = load_late(model), BuildOptions(index=index)
    if ranker.evidence is None:
        raise InvalidInput(f"{model} counts no words; polyrank train --only-evidence makes a copy that does")
    with tempfile.TemporaryDirectory() as directory:
        stores = TwoStores(Path(directory, "with-words"), Path(directory, "without"))
        build(ranker, rows, stores.with_words, options)
        built, _ = GenerationStore(stores.with_words).open_to_serve()
        matrix = built.embeddings.matrix
        build(
            _without_words(ranker, Path(directory, "model")),
            rows,
            stores.without,
            options,
            vectors=lambda start, ids, _texts, _on_done: (matrix[start : start + len(ids)], 0),
        )
        built.close()
        yield stores


def _without_words(ranker: LateRanker, directory: Path) -> LateRanker:
    ranker.save(directory)
    write_config(directory / CONFIG_FILE, replace(ranker.config, evidence=None))
    return load_late(directory)
