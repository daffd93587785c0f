"""Tokenizers and vocabularies: what they give, and files that are refused."""

import base64
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny import CLS, SEP, VOCABULARY, word_ids, write_base
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors

from polyrank.model.checkpoint.lookup import MINILM, resolve_base
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.text.tokenizer import Tokenizer, require_bounded


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("tokenizer") / "base", seed=0) / "tokenizer.json"


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    """A published WordPiece tokenizer whose file asks to cut and pad to 128 tokens."""
    return Tokenizer(resolve_base(MINILM).directory / "tokenizer.json")


def test_ids_without_special_tokens(file: Path) -> None:
    assert Tokenizer(file).encode(["w1 w2", "", "w39"]) == [word_ids("w1 w2"), [], word_ids("w39")]


def test_ids_are_the_same_alone_and_in_a_large_batch(minilm: Tokenizer) -> None:
    texts = ["Where's my parcel?", "", "naïve [SEP] 東京", *(f"order number {number}" for number in range(1000))]
    assert minilm.encode(texts)[:3] == minilm.encode(texts[:3])


def test_special_tokens_of_one_text_and_of_a_pair(file: Path) -> None:
    tokenizer = Tokenizer(file)
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.separator) == ([CLS], [SEP], "[SEP]")
    assert (tokenizer.pair_separator, tokenizer.pair_suffix) == ([SEP], [SEP])


def test_special_tokens_of_another_template(file: Path, tmp_path: Path) -> None:
    """RoBERTa puts two separators between the texts of a pair."""
    rust = RustTokenizer.from_file(str(file))
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] [CLS] $A [SEP]",
        pair="[CLS] [CLS] $A [SEP] [SEP] $B",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    rust.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.prefix, tokenizer.suffix) == ([CLS, CLS], [SEP])
    assert (tokenizer.pair_separator, tokenizer.pair_suffix) == ([SEP, SEP], [])


def test_no_special_tokens_at_all(file: Path, tmp_path: Path) -> None:
    raw = json.loads(file.read_text())
    raw["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.prefix == tokenizer.suffix == tokenizer.pair_separator == tokenizer.pair_suffix == []
    assert tokenizer.separator == ""


def test_settings_inside_the_file_do_not_count(file: Path, tmp_path: Path) -> None:
    rust = RustTokenizer.from_file(str(file))
    rust.enable_truncation(3)
    rust.enable_padding(length=9)
    rust.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    texts = ["w1 w2 w3 w4 w5 w6", "w1"]
    assert tokenizer.encode(texts) == [word_ids(text) for text in texts]
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pair_separator) == ([CLS], [SEP], [SEP])


def test_markers(file: Path) -> None:
    tokenizer = Tokenizer(file)
    assert tokenizer.marker("[SEP]") == [SEP]
    assert tokenizer.marker("w1 w2") == word_ids("w1 w2")
    assert tokenizer.marker("w1") == word_ids("w1")
    assert tokenizer.marker("") == []


def test_special_tokens_names_are_text(minilm: Tokenizer) -> None:
    typed, plain = minilm.encode(["thanks [SEP] bye", "thanks [ sep ] bye"])
    assert typed == plain
    assert not {101, 102, 0} & set(minilm.encode(["[CLS] x [SEP] [PAD]"])[0])


def test_sixteen_threads_get_the_same_ids(minilm: Tokenizer) -> None:
    texts = [f"text number {n}, of {'many ' * (n % 50)}words" for n in range(400)]
    expected = minilm.encode(texts)

    def work(thread: int) -> bool:
        """Batches of all sizes, texts short and long: what shared settings would trip over."""
        return all(
            minilm.encode(texts[start : start + 1 + thread]) == expected[start : start + 1 + thread]
            and minilm.marker("[SEP]") == [102]
            for start in range(0, len(texts), 1 + thread)
        )

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


def edited(file: Path, **changes: object) -> str:
    return json.dumps(json.loads(file.read_text()) | changes)


@pytest.mark.parametrize(
    "model", [{"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"}, {"type": "BPE", "vocab": {}, "merges": []}]
)
def test_a_tokenizer_that_encodes_nothing(file: Path, tmp_path: Path, model: dict[str, object]) -> None:
    (tmp_path / "tokenizer.json").write_text(edited(file, model=model, added_tokens=[], post_processor=None))
    with pytest.raises(CheckpointInvalid, match=r"tokenizer\.json cannot encode"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_the_tiny_vocabulary_is_one_token_a_word(file: Path) -> None:
    assert Tokenizer(file).encode(VOCABULARY[4:]) == [[at] for at in range(4, len(VOCABULARY))]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a sound tokenizer.json."""
    base = write_base(tmp_path_factory.mktemp("growth") / "base", seed=0)
    content: dict[str, Any] = json.loads((base / "tokenizer.json").read_text())
    return content


def replaced(letter: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": letter}, "content": content}


def table(trie: bytes, texts: bytes, size: int | None = None) -> dict[str, Any]:
    content = (len(trie) if size is None else size).to_bytes(4, "little") + trie + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def sequence(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
UNTYPED = {name: value for name, value in BYTES.items() if name != "type"}
TEXT, PAIR = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
MARK = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
TOO_LONG = "make a text more than 256 times as long"


def template(*pieces: Any, ids: int = 1) -> dict[str, Any]:
    tokens = {"[SEP]": {"id": "[SEP]", "ids": [3] * ids, "tokens": ["[SEP]"] * ids}}
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [TEXT, PAIR], "special_tokens": tokens}


@pytest.mark.parametrize(("part", "why"), [
    ({"normalizer": sequence(*[replaced("a", "a" * 10)] * 12)}, TOO_LONG),
    ({"normalizer": sequence(*[replaced("z", "z" * 10)] * 12)}, TOO_LONG),  # of a letter that loading does not read
    ({"normalizer": sequence(sequence(sequence(*[replaced("z", "zz")] * 9)))}, TOO_LONG),
    ({"normalizer": {"normalizers": [{"pattern": {"String": "z"}, "content": "z" * 257}]}}, TOO_LONG),
    ({"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "z" * 256}}, TOO_LONG),
    ({"normalizer": {"type": "Prepend", "prepend": "z" * 257}}, "puts 257 letters before each text"),
    ({"normalizer": sequence(*[{"type": "Lowercase"}] * 1100)}, "more than 1024 steps"),
    ({"normalizer": table(b"", b"", size=2**32 - 1)}, "precompiled_charsmap is damaged"),
    ({"normalizer": table(b"", b"")}, "precompiled_charsmap is damaged"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA"}}, "is not a tokenizer file"),
    ({"normalizer": table(bytes(4), b"x" * 20_000)}, TOO_LONG),
    ({"normalizer": table(b"\xff" * 4, b"x")}, "cannot encode the letter a"),  # a panic of the library
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 5}}, TOO_LONG),
    ({"pre_tokenizer": {"pretokenizers": [UNTYPED] * 5}}, TOO_LONG),
    ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "cannot encode the letter a"),  # another panic
    ({"post_processor": {"type": "Sequence", "processors": [template(*[TEXT] * 10)] * 3}}, TOO_LONG),
    ({"post_processor": template(MARK, TEXT, ids=300)}, "more than 256 tokens around each text"),
    ({"post_processor": template(TEXT, *[MARK] * 300)}, "more than 256 tokens around each text"),
    (
        {"normalizer": sequence(replaced("a", "bb")), "pre_tokenizer": BYTES, "post_processor": template(*[TEXT] * 64)},
        TOO_LONG,
    ),
    (
        {"model": {"type": "WordPiece", "unk_token": "a", "max_input_chars_per_word": 10**9, "vocab": {"a": 0}}},
        "letters",
    ),
])  # fmt: skip
def test_a_file_that_would_end_the_process_is_refused(
    sound: dict[str, Any], tmp_path: Path, part: dict[str, Any], why: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(sound | part))
    with pytest.raises(CheckpointInvalid) as caught:
        Tokenizer(tmp_path / "tokenizer.json")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_judged_is_what_is_loaded(sound: dict[str, Any], tmp_path: Path) -> None:
    """Of a name that comes twice readers may take either."""
    grows, file = (
        json.dumps({"normalizer": sequence(*[replaced("z", "z" * 10)] * 12)})[1:-1],
        tmp_path / "tokenizer.json",
    )
    file.write_text(f"{{{grows}, {json.dumps(sound)[1:]}")
    assert Tokenizer(file).encode(["w1 zzz"]) == [[5, 1]]
    file.write_text(f"{json.dumps(sound)[:-1]}, {grows}}}")
    with pytest.raises(CheckpointInvalid, match=TOO_LONG):
        Tokenizer(file)


@pytest.mark.parametrize("content", ["[1]", "null", "[" * 5000 + "]" * 5000, '{"normalizer": 3}'])
def test_other_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointInvalid, match="is not a tokenizer file"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_the_library_would_have_ended_the_process(sound: dict[str, Any], tmp_path: Path) -> None:
    """Else this module guards against nothing, and can go."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(sound | {"normalizer": table(b"", b"", size=2**32 - 1)}))
    code = (
        "import resource, tokenizers, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "tokenizers.Tokenizer.from_file(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "tokenizer.json"], capture_output=True, check=False)
    assert done.returncode < 0, "a signal"


def published() -> dict[str, RustTokenizer]:
    """The steps of well-known tokenizers, as the library writes them."""
    albert = RustTokenizer(models.Unigram())
    albert.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
            normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace("https?://", "link "),
        ]
    )  # fmt: skip
    albert.pre_tokenizer = pre_tokenizers.Metaspace()
    llama = RustTokenizer(models.BPE())
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    gpt2 = RustTokenizer(models.BPE())
    gpt2.pre_tokenizer, gpt2.post_processor = pre_tokenizers.ByteLevel(), processors.ByteLevel()
    roberta = RustTokenizer(models.BPE())
    roberta.pre_tokenizer = pre_tokenizers.ByteLevel()
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    bert = RustTokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    bert.normalizer, bert.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return {"albert": albert, "llama": llama, "gpt2": gpt2, "roberta": roberta, "bert": bert}


@pytest.mark.parametrize("name", published())
def test_published_steps_are_taken(name: str) -> None:
    require_bounded(json.loads(published()[name].to_str()))
