from random import Random

import numpy as np
import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.index_builder.vectors.redis import (
    CORRUPT,
    HIT,
    MISS,
    decode_many,
    decode_rows,
    encode,
    encode_rows,
    prefix,
)
from polyrank.model.representations import LateRows

pytestmark = pytest.mark.quick

DIMS = st.integers(1, 40)
KEYS = st.binary(max_size=30)


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, int, list[bytes], np.ndarray]:
    """Keys and vectors of any bits, NaN and infinities too: the codec carries bits."""
    dtype, dim = draw(st.sampled_from(sorted(DTYPES))), draw(DIMS)
    keys = draw(st.lists(KEYS, max_size=8))
    raw = draw(arrays(np.uint8, (len(keys), dim * DTYPES[dtype].itemsize)))
    return dtype, dim, keys, raw.view(DTYPES[dtype])


@given(entries())
def test_what_is_encoded_is_decoded_to_the_bit(case: tuple[str, int, list[bytes], np.ndarray]) -> None:
    dtype, dim, keys, vectors = case
    head = prefix(DTYPES[dtype], dim)
    values = [encode(key, vector, head) for key, vector in zip(keys, vectors, strict=True)]
    decoded, status = decode_many(keys, values, DTYPES[dtype], dim)
    assert (decoded.dtype, decoded.shape) == (DTYPES[dtype], (len(keys), dim))
    assert decoded.tobytes() == vectors.tobytes()
    assert (status == HIT).all()


@settings(max_examples=cases(25))
@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 8), KEYS, st.randoms(use_true_random=False))
def test_every_single_flipped_bit_is_detected(dtype: str, dim: int, key: bytes, random: Random) -> None:
    vector = np.frombuffer(random.randbytes(dim * DTYPES[dtype].itemsize), DTYPES[dtype])
    value = encode(key, vector, prefix(DTYPES[dtype], dim))
    flipped = []
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << (bit % 8)
        flipped.append(bytes(damaged))
    decoded, status = decode_many([key] * len(flipped), flipped, DTYPES[dtype], dim)
    assert (status == CORRUPT).all()
    assert not decoded.any()


@given(DIMS, st.integers(-9, 9).filter(bool))
def test_another_length_dimension_or_dtype_does_not_pass(dim: int, change: int) -> None:
    half, full = DTYPES["float16"], DTYPES["float32"]
    value = encode(b"k", np.zeros(2 * dim, half), prefix(half, 2 * dim))
    as_single = encode(b"k", np.zeros(dim, full), prefix(full, dim))
    resized = value[:change] if change < 0 else value + bytes(change)
    _, status = decode_many([b"k"] * 3, [resized, as_single, b""], half, 2 * dim)
    assert (status == CORRUPT).all()


def test_good_missing_and_damaged_values_keep_their_places() -> None:
    dtype = DTYPES["float32"]
    good = encode(b"b", np.array([1, 2], dtype), prefix(dtype, 2))
    vectors, status = decode_many([b"a", b"b", b"c", b"b"], [None, good, good, good], dtype, 2)
    assert status.tolist() == [MISS, HIT, CORRUPT, HIT]
    assert vectors.tolist() == [[0, 0], [1, 2], [0, 0], [1, 2]]


@settings(max_examples=cases(25))
@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 4), st.integers(0, 3), KEYS, st.randoms(use_true_random=False))
def test_rows_come_back_and_no_flipped_bit_other_key_or_number_passes(dtype, dim, count, key, random) -> None:
    stored, late = DTYPES[dtype], LateRows(dim, None)
    rows = np.frombuffer(random.randbytes(count * dim * stored.itemsize), stored).reshape(count, dim)
    value = encode_rows(key, rows)
    [found], status = decode_rows([key], [value], stored, late)
    assert found is not None
    assert (found.shape, found.dtype, found.tobytes(), status.tolist()) == (rows.shape, stored, rows.tobytes(), [HIT])
    flipped = []
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << (bit % 8)
        flipped.append(bytes(damaged))
    found, status = decode_rows([key] * len(flipped), flipped, stored, late)
    assert (found, set(status.tolist())) == ([None] * len(flipped), {CORRUPT})
    assert decode_rows([key + b"x", key, key], [value, None, b""], stored, late).status.tolist() == [
        CORRUPT,
        MISS,
        CORRUPT,
    ]
    assert decode_rows([key], [value], stored, LateRows(dim, count + 1)).status.tolist() == [CORRUPT]
    assert decode_rows([key], [value], stored, LateRows(dim + 1, None)).status.tolist() == [CORRUPT]
    assert decode_many([key], [value], stored, dim).status.tolist() == [CORRUPT]
