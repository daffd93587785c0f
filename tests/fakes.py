"""Stand-ins that are quick and known through and through."""

import json
from collections.abc import Callable, Sequence
from hashlib import shake_128
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.config import LexicalConfig, ModelConfig
from polyrank.model.representations import LateRows, Representations

EVIDENCE = LexicalConfig(
    late_weight=2.0,
    weights={"persona": 0.7, "told": -0.1, "last": 0.3, "before": 0.2, "older": 0.1, "said": -5.0, "length": 0.4},
)


class HashEncoder:
    """A candidate encoder without torch: a text's vector is drawn from the text's hash."""

    name = "hash"
    architecture = "bi"
    backend, precision, rounding = "none", "float32", "float32"

    def __init__(
        self,
        dim: int = 8,
        fingerprint: str = "0123456789abcdef" * 4,
        longest: int = 1000,
        evidence: LexicalConfig | None = None,
        late: LateRows | None = None,
    ) -> None:
        self.dim, self.fingerprint, self.longest, self.evidence = dim, fingerprint, longest, evidence
        self.late_rows = late

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """The text's bytes."""
        tokens = [list(text.encode()) for text in texts]
        return [each[: self.longest] for each in tokens], sum(len(each) > self.longest for each in tokens)

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Whole numbers within -128..127, which float16 holds exactly."""
        if on_done is not None:
            on_done(len(candidates))
        return _drawn(candidates, [self.dim] * len(candidates)).reshape(-1, self.dim)

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        """The same, with rows for a second stage if it has one; up to four where they differ."""
        first = self.encode_candidates(candidates, on_done)
        if self.late_rows is None:
            return Representations(first)
        late = self.late_rows
        counts = np.array([1 + sum(each) % 4 if late.count is None else late.count for each in candidates], np.int64)
        rows = _drawn([[0, *each] for each in candidates], (counts * late.dim).tolist())
        return Representations(first, rows.reshape(-1, late.dim), counts)

    def of(self, texts: Sequence[str]) -> Representations:
        """What is stored of texts."""
        return self.represent_candidates(self.tokenize_candidates(texts)[0])

    def vector(self, text: str) -> NDArray[np.float32]:
        """The embedding of one text."""
        return self.encode_candidates(self.tokenize_candidates([text])[0])[0]

    def save(self, directory: Path) -> None:
        """A checkpoint of two files."""
        directory.mkdir()
        config = ModelConfig(architecture="bi", base_name="hash", evidence=self.evidence).to_json()
        stored = config if self.evidence else {"fingerprint": self.fingerprint}
        (directory / "polyrank.json").write_text(json.dumps(stored))
        (directory / "tokenizer.json").write_text("{}\n")


def _drawn(seeds: Sequence[Sequence[int]], counts: Sequence[int]) -> NDArray[np.float32]:
    drawn = b"".join(shake_128(bytes(seed)).digest(count) for seed, count in zip(seeds, counts, strict=True))
    return np.frombuffer(drawn, np.int8).astype(np.float32)


def silent(*_: object) -> None:
    """Progress is of no interest."""


def pool(count: int, salt: str = "") -> list[Candidate]:
    """Candidates with ids c0, c1, …; the salt tells one pool's texts from another's."""
    return [Candidate(f"c{i}", f"text {salt}{i}", {"even": i % 2 == 0}) for i in range(count)]


def flip(root: Path, generation: str, file: str = "embeddings.bin") -> None:
    """Turn one bit round in the middle of a file of a generation."""
    path = root / "generations" / generation / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def assert_whole(generation: Generation, encoder: HashEncoder, candidates: Sequence[Candidate]) -> None:
    """The generation is that of these candidates: rows, ids and vectors belong together."""
    assert generation.candidates.rows(np.arange(len(candidates))) == list(candidates)
    assert (generation.embeddings.ids.rows([each.id for each in candidates]) == np.arange(len(candidates))).all()
    assert (generation.embeddings.matrix == np.stack([encoder.vector(each.text) for each in candidates])).all()
    if encoder.late_rows is not None:
        expected = encoder.of([each.text for each in candidates])
        stored = generation.embeddings.representations(np.arange(len(candidates)))
        np.testing.assert_array_equal(stored.late, expected.late)
        np.testing.assert_array_equal(stored.counts, expected.counts)
    assert generation.manifest.late == encoder.late_rows
    assert generation.manifest.count == len(candidates)
    assert generation.manifest.model.fingerprint == encoder.fingerprint
