"""Triton kernels of the scan on a GPU: `scan` scores every row, `finalists` scores the best again in float64.

Both score a row by the closed form of candidate attention, `sum_i softmax(s)_i s_i`, over its products s with the code
vectors of a context. They take some codes at a time, and keep of the codes seen so far the largest product (`peak`),
the sum of `exp(s_i - peak)` (`mass`) and the sum of `exp(s_i - peak) (s_i - peak)` (`sunk`, never above 0). The score
is then `peak + sunk / mass`. There is no pruning: with 64 codes the exponentials take a tenth of the time that reading
the rows takes.

If a query adds numbers to the scores, `scan` then multiplies the score by the late weight and adds the row's number.
`finalists` leaves that to the CPU, which does it in float64 for every kind of scan.

A program scores a block of rows for PACK contexts, whose vectors lie side by side in one product. Programs of the same
rows have neighbouring numbers and run at about the same time, so the matrix is read from memory once and then from the
cache, whatever the number of contexts.
"""

import triton
import triton.language as tl

_RELATIVE = tl.constexpr(2.0**-22)  # polyrank.model.search.topk.RELATIVE
_LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32, above -inf


# Without this list Triton would compile the kernel anew for other values of these numbers.
@triton.jit(do_not_specialize=["n", "padded", "contexts"])
def scan(
    matrix,  # (n, D), as stored
    codes,  # (contexts, padded, D) in the matrix's type, scaled by a power of two; vectors beyond `counts` are 0
    units,  # (contexts,) float32: factor of a product that undoes the scaling
    counts,  # (contexts,) int32: number of code vectors
    allowed,  # (contexts, n) bool: rows that may be in the answer; only read if MASKED
    late_weights,  # (contexts,) float64; only read if ADDED
    values,  # (contexts, n) float32: what is added to the scores; only read if ADDED
    scores,  # (contexts, n) float32, written: -inf for a row not kept, inf if a product is not finite
    maxima,  # (contexts, blocks) float32, written: the largest score of each block of ROWS
    n,
    padded,
    contexts,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    DIMS: tl.constexpr,
    PACK: tl.constexpr,
    MASKED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Score ROWS rows for PACK contexts."""
    packs = tl.cdiv(contexts, PACK)
    first_context = tl.program_id(0) % packs * PACK
    block = tl.program_id(0) // packs
    row = block * ROWS + tl.arange(0, ROWS)
    row_starts = matrix + tl.minimum(row, n - 1).to(tl.int64)[:, None] * D
    context = first_context + tl.arange(0, PACK)
    # The last pack may be too large: its surplus repeats the last context and writes nothing.
    count = tl.load(counts + tl.minimum(context, contexts - 1))
    unit = tl.load(units + tl.minimum(context, contexts - 1))
    column = tl.arange(0, PACK * CODES)
    column_context = tl.minimum(first_context + column // CODES, contexts - 1)
    peak = tl.full((ROWS, PACK), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS, PACK), tl.float32)
    sunk = tl.zeros((ROWS, PACK), tl.float32)
    for first in range(0, tl.max(count, axis=0), CODES):
        code_starts = codes + (column_context * padded + first + column % CODES)[None, :].to(tl.int64) * D
        s = tl.zeros((ROWS, PACK * CODES), tl.float32)
        for start in range(0, D, DIMS):
            dim = start + tl.arange(0, DIMS)
            if D % DIMS == 0:
                rows = tl.load(row_starts + dim[None, :])
                vectors = tl.load(code_starts + dim[:, None])
            else:
                rows = tl.load(row_starts + dim[None, :], mask=(dim < D)[None, :], other=0.0)
                vectors = tl.load(code_starts + dim[:, None], mask=(dim < D)[:, None], other=0.0)
            s = tl.dot(rows, vectors, s, input_precision="ieee")
        by_context = tl.reshape(s, (ROWS, PACK, CODES)) * unit[None, :, None]
        is_code = (first + tl.arange(0, CODES))[None, None, :] < count[None, :, None]
        peak, mass, sunk = _folded(by_context, is_code, peak, mass, sunk)
    score = peak + sunk / mass
    score = tl.where(score == score, score, float("inf"))
    at = context.to(tl.int64)[None, :] * n + row[:, None]
    inside = (row < n)[:, None] & (context < contexts)[None, :]
    if ADDED:
        late_weight = tl.load(late_weights + tl.minimum(context, contexts - 1)).to(tl.float32)
        score = score * late_weight[None, :] + tl.load(values + at, mask=inside, other=0.0)
    if MASKED:
        score = tl.where(tl.load(allowed + at, mask=inside, other=False), score, float("-inf"))
    score = tl.where(inside, score, float("-inf"))
    tl.store(scores + at, score, mask=inside)
    tl.store(maxima + context * tl.cdiv(n, ROWS) + block, tl.max(score, axis=0), mask=context < contexts)


@triton.jit(do_not_specialize=["n", "padded", "contexts", "most"])
def finalists(
    matrix,  # (n, D), as stored
    codes,  # (contexts, padded, D) float32, not scaled
    counts,  # (contexts,) int32
    scores,  # (contexts, n) float32, written by `scan`
    maxima,  # (contexts, blocks) float32, written by `scan`
    best,  # (contexts, most) float32: scores, best first; the k-th best of all is at least the k-th of these
    ks,  # (contexts,) int32
    margins,  # (contexts,) float32: how far below the k-th best a finalist may be
    slots,  # (1 + finalists, 2) int64, written: [count, -], then [context 2**32 + row, bits of the score by attention]
    n,
    padded,
    contexts,
    most,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    DIMS: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Score again, in float64, those of ROWS rows that can be among the k best of one context."""
    context = tl.program_id(0) % contexts
    block = tl.program_id(0) // contexts
    k = tl.load(ks + context)
    margin = tl.load(margins + context)
    least = tl.load(best + context * most + tl.maximum(k, 1) - 1)
    bar = least - margin
    if ADDED:
        bar -= tl.where(tl.abs(least) < float("inf"), _RELATIVE * tl.abs(least), 0.0)
    # With an infinite margin every kept row is a finalist; the others have the score -inf.
    bar = tl.where(margin < float("inf"), tl.maximum(bar, _LOWEST), _LOWEST)
    bar = tl.where(k > 0, bar, float("inf"))
    if tl.load(maxima + context * tl.cdiv(n, ROWS) + block) >= bar:
        count = tl.load(counts + context)
        place = tl.arange(0, ROWS)
        row = block * ROWS + place
        left = tl.load(scores + context.to(tl.int64) * n + row, mask=row < n, other=float("-inf"))
        for _ in range(tl.sum((left >= bar).to(tl.int32), axis=0)):
            first = tl.argmax(left, axis=0)
            left = tl.where(place == first, float("-inf"), left)
            of_row = matrix + (block * ROWS + first).to(tl.int64) * D
            score = _late(of_row, codes + context.to(tl.int64) * padded * D, count, D, CODES, DIMS)
            slot = slots + 2 * (1 + tl.atomic_add(slots, 1))
            tl.store(slot, (context.to(tl.int64) << 32) + block * ROWS + first)
            tl.store(slot + 1, score.to(tl.int64, bitcast=True))


@triton.jit
def _late(row, codes, count, D: tl.constexpr, CODES: tl.constexpr, DIMS: tl.constexpr):
    """Score one row by attention in float64; the result does not depend on where the row lies."""
    peak = tl.full((), float("-inf"), tl.float64)
    mass = tl.full((), 0.0, tl.float64)
    sunk = tl.full((), 0.0, tl.float64)
    for first in range(0, count, CODES):
        code = first + tl.arange(0, CODES)
        s = tl.zeros((CODES,), tl.float64)
        for start in range(0, D, DIMS):
            dim = start + tl.arange(0, DIMS)
            vector = tl.load(row + dim, mask=dim < D, other=0.0).to(tl.float64)
            inside = (code < count)[:, None] & (dim < D)[None, :]
            block = tl.load(codes + code[:, None] * D + dim[None, :], mask=inside, other=0.0).to(tl.float64)
            s += tl.sum(block * vector[None, :], axis=1)
        peak, mass, sunk = _folded(s, code < count, peak, mass, sunk)
    return peak + sunk / mass


@triton.jit
def _folded(s, is_code, peak, mass, sunk):
    """Fold more products, codes along the last axis, into `peak`, `mass` and `sunk`; `is_code` is false for padding."""
    axis: tl.constexpr = len(s.shape) - 1
    higher = tl.maximum(peak, tl.max(tl.where(is_code, s, float("-inf")), axis=axis))
    drop = tl.where(mass > 0, peak - higher, 0.0)
    below = tl.where(is_code, s - (higher if axis == 0 else tl.expand_dims(higher, axis)), 0.0)
    weight = tl.where(is_code, tl.exp(below), 0.0)
    sunk = (sunk + mass * drop) * tl.exp(drop) + tl.sum(weight * below, axis=axis)
    mass = mass * tl.exp(drop) + tl.sum(weight, axis=axis)
    return higher, mass, sunk
