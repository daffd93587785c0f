"""The encoders' mathematics a second time: float64 loops, written from the papers and from nothing else.

Source: Humeau et al. 2020, "Poly-encoders" (arXiv 1905.01969); its equations carry no numbers, so the section names
them. The paper knows no `normalize` and no scales: here they are what a checkpoint's config says.

A vector is a list of floats, a sequence of token outputs a list of vectors, without padding: what a loop does not
visit cannot take part.
"""

import math

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(logit - highest) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def weighted_sum(weights: list[float], vectors: list[Vector]) -> Vector:
    result = [0.0] * len(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        for d, value in enumerate(vector):
            result[d] += weight * value
    return result


def unit(vector: Vector) -> Vector:
    length = math.sqrt(dot(vector, vector))
    return [value / length for value in vector]


def code_attention(codes: list[Vector], outputs: list[Vector], scale: float = 1.0) -> list[Vector]:
    """4.4, first equation: y_i = sum_j w_j h_j, (w_1..w_N) = softmax(c_i . h_1, .., c_i . h_N)."""
    vectors = []
    for code in codes:
        weights = softmax([scale * dot(code, h) for h in outputs])
        vectors.append(weighted_sum(weights, outputs))
    return vectors


def first_outputs(outputs: list[Vector], m: int) -> list[Vector]:
    """Appendix C, second item: (h_1 .. h_m); of N < m outputs there are N."""
    return [outputs[j] for j in range(min(m, len(outputs)))]


def last_outputs(outputs: list[Vector], m: int) -> list[Vector]:
    """Appendix C, third item: (h_{N-m+1} .. h_N)."""
    n = len(outputs)
    return [outputs[j] for j in range(n) if j >= n - m]


def last_and_first_outputs(outputs: list[Vector], m: int) -> list[Vector]:
    """Appendix C, fourth item: the last m concatenated with h_1, which counts once where it is among the last m."""
    n = len(outputs)
    return [outputs[j] for j in range(n) if j == 0 or j >= n - m]


def context_vectors(
    outputs: list[Vector],
    kind: str,
    m: int,
    codes: list[Vector] | None = None,
    code_scale: float = 1.0,
    normalize: bool = False,
) -> list[Vector]:
    """The y_i of 4.4 and Appendix C, before any score scale."""
    if normalize:
        outputs = [unit(h) for h in outputs]
    if kind == "codes":
        assert codes is not None
        assert len(codes) == m
        vectors = code_attention(codes, outputs, code_scale)
    else:
        take = {"first": first_outputs, "last": last_outputs, "last+first": last_and_first_outputs}[kind]
        vectors = take(outputs, m)
    return [unit(y) for y in vectors] if normalize else vectors


def candidate_attention(vectors: list[Vector], candidate: Vector, scale: float = 1.0) -> float:
    """4.4, second equation, as two products.

    y_ctxt = sum_i w_i y_i, (w_1..w_m) = softmax(y_cand . y_1, .., y_cand . y_m); the score is y_ctxt . y_cand.
    """
    weights = softmax([scale * dot(candidate, y) for y in vectors])
    attended = weighted_sum(weights, vectors)
    return scale * dot(attended, candidate)


def reduce(outputs: list[Vector], kind: str, m: int = 0) -> Vector:
    """red() of 4.2: the first output, the mean of all, or the mean of the first m <= N."""
    if kind == "first":
        return outputs[0]
    taken = outputs if kind == "mean" else outputs[:m]
    return weighted_sum([1.0 / len(taken)] * len(taken), taken)


def bi_score(
    context_outputs: list[Vector],
    candidate_outputs: list[Vector],
    kind: str,
    m: int = 0,
    normalize: bool = False,
    scale: float = 1.0,
) -> float:
    """4.2: s = y_ctxt . y_cand with y = red(T(x))."""
    context, candidate = reduce(context_outputs, kind, m), reduce(candidate_outputs, kind, m)
    if normalize:
        context, candidate = unit(context), unit(candidate)
    return scale * dot(context, candidate)


def cross_score(joint_outputs: list[Vector], weight: Vector, bias: float) -> float:
    """4.3: y = first(T(ctxt, cand)), s = y W; the linear layer has a bias, the same for every candidate."""
    return dot(joint_outputs[0], weight) + bias
