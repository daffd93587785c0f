from dataclasses import replace
from typing import Any

import orjson
import pytest

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation.manifest import (
    BuildStats,
    FileEntry,
    Manifest,
    ModelReference,
    PartEntry,
    sealed,
)
from polyrank.index_builder.generation.slots import SLOTS
from polyrank.index_builder.index.choice import IndexSpec, SearchTimes
from polyrank.model.representations import LateRows

ID = "20261121T013000123456-1a2b3c4d"
RECALL: dict[str, float | int | str | None] = {
    "recall@10": 0.98, "recall@100": 0.9, "of": "vectors", "probes": "given",
    "count": 200, "p50_ms": 3.5, "p99_ms": 8.25, "min_recall": 0.95,
}  # fmt: skip
INDEX = IndexSpec("hnsw", "HNSW32", {"efSearch": 128}, times=SearchTimes(21.5, 12.25))
MANIFEST = Manifest(
    id=ID,
    created_at="2026-11-21T01:30:00.123456+00:00",
    model=ModelReference("chat-poly", "poly", "1a2b3c4d" * 8, ["en"]),
    backend="openvino",
    precision="bfloat16",
    dim=384,
    dtype="float16",
    count=3,
    revision=7,
    order_end=3,
    index=INDEX,
    recall=RECALL,
    languages={"en": 2, "de": 1},
    files={"embeddings.bin": FileEntry("ab" * 32, 2304), "model/polyrank.json": FileEntry("cd" * 32, 12)},
    build=BuildStats({"encode": 1.5, "read": 0.25}, 2.0, 1, 0, 2),
    parts=[PartEntry(0, SLOTS, 3, INDEX, RECALL)],
)


def signed(body: dict[str, Any]) -> bytes:
    """A manifest whose checksum fits, so that what else is wrong with it comes to light."""
    body = {key: value for key, value in body.items() if key != "sha256"}
    return sealed(body)


def body() -> dict[str, Any]:
    return dict(orjson.loads(MANIFEST.to_json()))


def test_what_is_written_is_read() -> None:
    assert Manifest.from_json(MANIFEST.to_json(), ID) == MANIFEST
    unmeasured = {**RECALL, "probes": "none", "count": 0, "p50_ms": None, "p99_ms": None}
    exact = replace(MANIFEST, index=IndexSpec("exact"), recall=unmeasured)
    assert Manifest.from_json(exact.to_json(), ID) == exact


def test_the_file_has_the_names_the_contract_gives() -> None:
    content = body()
    assert content["format_version"] == 5
    assert (content["backend"], content["precision"]) == ("openvino", "bfloat16")
    assert content["index"] == {
        "kind": "hnsw", "factory": "HNSW32", "params": {"efSearch": 128},
        "asked": "auto", "times": {"exact_ms": 21.5, "hnsw_ms": 12.25},
    }  # fmt: skip
    assert content["recall"] == RECALL
    assert content["files"]["embeddings.bin"] == {"sha256": "ab" * 32, "bytes": 2304}
    assert content["model"]["fingerprint"] == "1a2b3c4d" * 8
    assert Manifest.from_json(signed(content), ID) == MANIFEST


@pytest.mark.parametrize("late", [LateRows(384, 2), LateRows(128, None)])
def test_a_block_for_a_second_stage_is_read(late: LateRows) -> None:
    manifest = replace(MANIFEST, late=late)
    assert dict(orjson.loads(manifest.to_json()))["late"] == {"dim": late.dim, "count": late.count}
    assert Manifest.from_json(manifest.to_json(), ID) == manifest


@pytest.mark.parametrize(("change", "reason"), [
    ({"late": {"dim": 0, "count": 1}}, "late is not of 1..65535"),
    ({"late": {"dim": 1, "count": 70_000}}, "late is not of 1..65535"),
    ({"late": {"dim": 1}}, "count is missing"),
    ({"late": {"dim": 1, "count": 1.5}}, "count must be of type"),
])  # fmt: skip
def test_another_block_is_refused(change: dict[str, Any], reason: str) -> None:
    content = dict(orjson.loads(replace(MANIFEST, late=LateRows(384, 2)).to_json())) | change
    with pytest.raises(GenerationCorrupt, match=reason):
        Manifest.from_json(signed(content), ID)


def test_every_flipped_bit_is_noticed() -> None:
    content = MANIFEST.to_json()
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(GenerationCorrupt):
            Manifest.from_json(bytes(damaged), ID)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"{}", MANIFEST.to_json()[:-3]])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(GenerationCorrupt, match=r"manifest\.json"):
        Manifest.from_json(content, ID)


@pytest.mark.parametrize(("version", "said"), [(6, "6 is newer"), (4, "4 is older"), (1, "1 is older")])
def test_another_format_is_refused_for_that_reason_whatever_else_it_says(version: int, said: str) -> None:
    do = "upgrade polyrank" if version > 5 else "build again, into another directory"
    with pytest.raises(GenerationCorrupt, match=f"format {said} than this polyrank reads \\(5\\); {do}"):
        Manifest.from_json(b'{"format_version": %d, "something": "else"}' % version, ID)


@pytest.mark.parametrize(("path", "value", "reason"), [
    ("format_version", True, "format_version must be 5"),
    ("format_version", 0, "format_version must be 5"),
    ("format_version", "1", "format_version must be 5"),
    ("id", "20261121T013000123457-1a2b3c4d", "is that of generation 20261121T013000123457-1a2b3c4d"),
    ("id", 5, "id must be of type str"),
    ("created_at", None, "created_at must be of type str"),
    ("model", [], "model must be an object"),
    ("model.fingerprint", None, "fingerprint must be of type str"),
    ("model.extra", 1, "extra is unknown"),
    ("dim", 0, "dim 0 is not within"),
    ("dim", 70000, "dim 70000 is not within"),
    ("dim", 384.0, "dim must be of type int"),
    ("dim", True, "dim must be of type int"),
    ("dtype", "float64", "dtype 'float64' is not one of"),
    ("count", 0, "count 0 is not that of its parts"),
    ("count", 4, "count 4 is not that of its parts"),
    ("order_end", 2, "order_end 2 is less than count"),
    ("order_end", None, "order_end must be of type int"),
    ("revision", -1, "revision -1 is negative"),
    ("parts", [], "count 3 is not that of its parts"),
    ("parts", {}, "parts must be of type list"),
    ("parts", [{}], "count is missing"),
    ("count", "3", "count must be of type int"),
    ("index", None, "index must be"),
    ("index.kind", 1, "index must be"),
    ("index.factory", None, "index must be"),
    ("index.factory", 7, "index must be"),
    ("index.params", [], "index must be"),
    ("index.params.efSearch", 1.5, "index must be"),
    ("index.extra", 1, "index must be"),
    ("recall", {}, "recall must be"),
    ("recall.recall@10", 1, "recall@10 must be of type float"),
    ("recall.probes", None, "probes must be of type str"),
    ("recall.of", 1, "of must be of type str"),
    ("recall.p50_ms", None, "p50_ms must be of type float"),
    ("recall.count", 0, "p50_ms must be of type NoneType"),
    ("recall.count", 1.0, "count must be of type int"),
    ("recall.extra", 1, "recall must be recall@10, recall@100, of, probes, count, p50_ms, p99_ms, min_recall"),
    ("files", [], "files must be of type dict"),
    ("files.x", {"sha256": "a"}, "bytes is missing"),
    ("files.x", {"sha256": "a", "bytes": -1}, "negative size"),
    ("build.seconds", {"encode": 1}, "encode must be of type float"),
    ("build.attempts", 1.0, "attempts must be of type int"),
    ("build.rejected", None, "rejected must be of type int"),
    ("extra", 1, "extra is unknown"),
])  # fmt: skip
def test_another_type_or_value_is_refused(path: str, value: object, reason: str) -> None:
    content = body()
    *parents, last = path.split(".")
    table = content
    for parent in parents:
        table = table[parent]
    table[last] = value
    with pytest.raises(GenerationCorrupt) as caught:
        Manifest.from_json(signed(content), ID)
    assert reason in str(caught.value)
    assert caught.value.generation == ID


@pytest.mark.parametrize("name", sorted(set(body()) - {"sha256", "format_version"}))
def test_every_field_is_required(name: str) -> None:
    content = body()
    del content[name]
    with pytest.raises(GenerationCorrupt, match=f"{name} is missing"):
        Manifest.from_json(signed(content), ID)
