import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, assert_whole, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound
from polyrank.index_builder.generation.generation import Generation, describe_files
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore

ENCODER = HashEncoder(evidence=EVIDENCE)
OLD, NEW = pool(40, "old "), pool(60, "new ")
FILES = [
    "manifest.json", "embeddings.bin", "ids.index", "texts.index",
    "candidates.arrow", "index.faiss", "model/polyrank.json", "model/tokenizer.json",
    *(f"words/{name}.npy" for name in ("keys", "starts", "rows", "weights", "columns", "texts", "texts_rows")),
    *(f"words/statistics-{name}.npy" for name in ("totals", "keys", "frequencies")),
]  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    for candidates in (OLD, NEW):
        build(ENCODER, candidates, root, BuildOptions(index="hnsw"))
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    """A store of two generations, the newer one active."""
    shutil.copytree(built, tmp_path / "store")
    return tmp_path / "store"


def newest(root: Path) -> Path:
    store = GenerationStore(root)
    return store.path(store.ids()[-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_good_generation_opens_whole(root: Path) -> None:
    [generation], refused = GenerationStore(root).open_to_serve()
    assert refused == []
    assert generation.path == newest(root)
    assert_whole(generation, ENCODER, NEW)
    assert generation.index.search(ENCODER.vector(NEW[7].text)[None], 1)[0].shape == (1, 1)
    assert (generation.model_directory / "polyrank.json").exists()
    assert sorted(generation.manifest.files) == sorted(set(FILES) - {"manifest.json"})


@pytest.mark.parametrize("name", ["extra", "model/extra", "index.faiss.tmp"])
def test_a_file_that_the_manifest_does_not_know_is_refused(root: Path, name: str) -> None:
    (newest(root) / name).write_bytes(b"")
    with pytest.raises(GenerationCorrupt, match=f"{name} is not in the manifest"):
        Generation.open(newest(root))
    assert_whole(GenerationStore(root).open_to_serve()[0][0], ENCODER, OLD)


def test_without_verifying_sizes_are_still_checked(root: Path) -> None:
    flip(newest(root) / "model/tokenizer.json")
    Generation.open(newest(root), verify=False).close()
    truncate(newest(root) / "model/tokenizer.json")
    with pytest.raises(GenerationCorrupt, match=r"tokenizer\.json has 2 bytes, the manifest says 3"):
        Generation.open(newest(root), verify=False)


@pytest.mark.parametrize(("change", "reason"), [
    ({"count": 59, "parts": 59}, "of 60 candidates, the manifest says 59"),
    ({"dim": 4}, "embeddings.bin has 960 bytes"),
    ({"dtype": "float32"}, "embeddings.bin has 960 bytes"),
    ({"id": "20261121T013000123456-1a2b3c4d"}, "is that of generation"),
])  # fmt: skip
def test_a_manifest_that_does_not_fit_its_files_is_refused(root: Path, change: dict[str, object], reason: str) -> None:
    path = newest(root)
    manifest = Generation.open(path).manifest
    if "parts" in change:
        change = {**change, "parts": [replace(manifest.parts[0], count=change["parts"])]}
    (path / "manifest.json").write_bytes(replace(manifest, **change).to_json())
    with pytest.raises(GenerationCorrupt, match=reason):
        Generation.open(path)


@pytest.mark.parametrize(("name", "reason"), [
    ("candidates.arrow", "candidates.arrow is of 40 candidates, the manifest says 60"),
    ("index.faiss", "index.faiss is of 40 candidates, the manifest says 60"),
    ("ids.index", "embeddings.bin has 960 bytes, which are not 40 x 8"),
    ("texts.index", "texts.index is of 40 candidates, the manifest says 60"),
])  # fmt: skip
def test_a_sound_file_of_another_generation_is_refused(root: Path, name: str, reason: str) -> None:
    store = GenerationStore(root)
    old, new = map(store.path, store.ids())
    shutil.copy(old / name, new / name)
    rewrite_manifest(new)
    with pytest.raises(GenerationCorrupt, match=reason):
        Generation.open(new)


def test_an_index_of_another_dimension_is_refused(root: Path, tmp_path: Path) -> None:
    build(HashEncoder(dim=5), NEW, tmp_path / "other", BuildOptions(index="hnsw"))
    shutil.copy(newest(tmp_path / "other") / "index.faiss", newest(root) / "index.faiss")
    rewrite_manifest(newest(root))
    with pytest.raises(GenerationCorrupt, match=r"index\.faiss is of dimension 5, the manifest says 8"):
        Generation.open(newest(root))


@pytest.mark.parametrize("name", ["index.faiss", "candidates.arrow"])
def test_garbage_with_a_fitting_checksum_is_refused_all_the_same(root: Path, name: str) -> None:
    (newest(root) / name).write_bytes(np.random.default_rng(0).bytes(5000))
    rewrite_manifest(newest(root))
    with pytest.raises(GenerationCorrupt):
        Generation.open(newest(root))


def rewrite_manifest(path: Path) -> None:
    manifest = Manifest.from_json((path / "manifest.json").read_bytes(), path.name)
    (path / "manifest.json").write_bytes(replace(manifest, files=describe_files(path)).to_json())


def test_a_lost_pointer_is_told_and_the_one_active_before_opens(root: Path) -> None:
    (root / "CURRENT").unlink()
    [generation], refused = GenerationStore(root).open_to_serve()
    assert_whole(generation, ENCODER, OLD)
    assert refused == [("CURRENT", "CURRENT is missing")]


def test_where_none_was_ever_active_nothing_is_served_until_one_is_activated(root: Path) -> None:
    (root / "CURRENT").unlink()
    (root / "HISTORY").unlink()
    store = GenerationStore(root)
    with pytest.raises(GenerationNotFound, match="none is active; run: polyrank store activate"):
        store.open_to_serve()
    store.activate(newest(root).name)
    assert_whole(store.open_to_serve()[0][0], ENCODER, NEW)


def test_when_none_is_good_every_reason_is_told(root: Path) -> None:
    store = GenerationStore(root)
    for each in store.ids():
        flip(store.path(each) / "ids.index")
    with pytest.raises(GenerationNotFound) as caught:
        store.open_to_serve()
    assert str(caught.value).count("the sha256 of ids.index differs") == 2
    with pytest.raises(GenerationNotFound, match="it is empty; run: polyrank build"):
        GenerationStore(root / "nowhere").open_to_serve()


@pytest.mark.parametrize("name", ["..", "../generations", "", "20261121T013000123456-1a2b3c4d/..", ".tmp-x", "CURRENT"])
def test_nothing_but_an_id_becomes_a_path(root: Path, name: str) -> None:
    store = GenerationStore(root)
    for call in (store.open, store.verify, store.activate, store.path):
        with pytest.raises(GenerationNotFound, match="is not the id of a generation"):
            call(name)
    with pytest.raises(GenerationNotFound, match="no generation 20260101T000000000000-00000000 in"):
        store.activate("20260101T000000000000-00000000")


def test_what_was_taken_from_a_closed_generation_stays(root: Path) -> None:
    generation = Generation.open(newest(root))
    matrix, candidates = generation.embeddings.matrix, generation.candidates
    generation.close()
    shutil.rmtree(newest(root))
    assert (matrix[3] == ENCODER.vector(NEW[3].text)).all()
    assert candidates.rows([59]) == [NEW[59]]
