"""Losses: pure functions of score matrices.

Axes: B contexts, N candidates (columns). `allowed` is True where a column may count in a row's softmax: the row's own
gold reply, and every candidate that is not another correct reply of that row.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def listwise(scores: Tensor, gold: Tensor, allowed: Tensor) -> Tensor:
    """Cross entropy of the gold reply against its negatives.

    With the batch's other replies as negatives this is the in-batch loss of Humeau et al. 4.2; with a retriever's best
    results as negatives it is LCE (Gao et al. 2021).

    scores: (B, N). gold: column of each row's gold reply, (B,) int64. allowed: (B, N). Returns the mean over rows.

    >>> scores = torch.tensor([[0.0, 0.0, 99.0]])
    >>> round(listwise(scores, torch.tensor([0]), torch.tensor([[True, True, False]])).item(), 4)  # ln 2
    0.6931
    """
    return F.cross_entropy(scores.float().masked_fill(~allowed, float("-inf")), gold)


def pointwise(scores: Tensor, gold: Tensor, allowed: Tensor) -> Tensor:
    """Binary cross entropy of each pair on its own (Nogueira & Cho 2019).

    `-log sigma(s+) - sum log(1 - sigma(s-))`, the mean over rows; arguments as `listwise`.

    >>> round(pointwise(torch.zeros(1, 2), torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool)).item(), 4)  # 2 ln 2
    1.3863
    """
    is_gold = F.one_hot(gold, scores.shape[1]).bool()
    signed = torch.where(is_gold, scores, -scores).float()
    return -(F.logsigmoid(signed) * allowed).sum(dim=1).mean()


def distillation(student: Tensor, teacher: Tensor, allowed: Tensor) -> Tensor:
    """KL divergence from the teacher's distribution over a row's candidates to the student's.

    student, teacher, allowed: (B, N). Returns the mean over rows; zero where both rank with equal confidence.

    >>> scores = torch.tensor([[2.0, 0.0]])
    >>> distillation(scores, scores + 5, torch.ones(1, 2, dtype=torch.bool)).item()
    0.0
    """
    log_student = student.float().masked_fill(~allowed, float("-inf")).log_softmax(dim=1)
    log_teacher = teacher.float().masked_fill(~allowed, float("-inf")).log_softmax(dim=1)
    terms = log_teacher.exp() * (log_teacher - log_student)
    return terms.masked_fill(~allowed, 0.0).sum(dim=1).mean()
