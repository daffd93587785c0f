"""Two stores of the same replies with the same vectors: the model of one counts words, that of the other does not."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.vectors import taken_from

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, write_config
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_late
from polyrank.service.cli.arguments import chosen_runner, loaded


class TwoStores(NamedTuple):
    """Their directories."""

    with_words: Path
    without: Path


@contextmanager
def two_stores(model: str, rows: Sequence[Candidate], index: str = "auto") -> Iterator[TwoStores]:
    """Build both stores for the `with` block, as `polyrank build` does; each text is encoded once.

    Raises InvalidInput where the model counts no words.
    """
    runner, options = chosen_runner(), BuildOptions(index=index)
    ranker = loaded(load_late, model, runner)
    if ranker.evidence is None:
        raise InvalidInput(f"{model} counts no words; polyrank train --only-evidence makes a copy that does")
    with tempfile.TemporaryDirectory() as directory:
        stores = TwoStores(Path(directory, "with-words"), Path(directory, "without"))
        build(ranker, rows, stores.with_words, options)
        [built], _ = GenerationStore(stores.with_words).open_to_serve()
        stored = built.embeddings.representations
        ranker.save(Path(directory, "model"))
        write_config(Path(directory, "model", CONFIG_FILE), replace(ranker.config, evidence=None))
        build(
            loaded(load_late, str(Path(directory, "model")), runner),
            rows,
            stores.without,
            options,
            vectors=taken_from(lambda first, end: stored(np.arange(first, end))),
        )
        built.close()
        yield stores
