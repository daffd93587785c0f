"""How encoders that keep both sides apart are trained: in-batch loss with listed negatives, maybe with a teacher."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import length_batches
from polyrank.model.architectures.vector import CandidateState, ContextState, InnerTeacher, VectorEncoder
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_teacher
from polyrank.model.rankers.networks import CrossRanker, NetworkRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import InnerTrainConfig, TrainConfig, TwoStageTrainConfig, VectorTrainConfig
from polyrank.model.training.data import Columns, WordsInLoss, columns
from polyrank.model.training.objective import (
    Batch,
    Encoded,
    Objective,
    Prepared,
    ScoredBatch,
    classes_of,
    classwise,
    distillation,
    in_order,
    listwise,
)
from polyrank.model.training.student import Student

_PROBE = Conversation.of("The quick brown fox, 12345: naïve!")  # texts of one tokenizer give these tokens


Tokens = tuple[list[list[int]], list[list[int]]]
"""Token ids of the contexts and of the candidates of a batch."""


class VectorObjective(Objective[VectorEncoder, VectorTrainConfig]):
    """In-batch loss of the scores that place candidates, with distillation where there is a teacher.

    Where a second stage places them `first_weight` times the in-batch loss of the first one is added, and
    `inner_weight` times that of what the teacher shows inside. Words that count are part of the scores, as they are in
    a checkpoint with evidence; a teacher shows what the network alone has to say.
    """

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, words: WordsInLoss | None = None
    ) -> None:
        super().__init__(student, config, device, words)
        teacher = self._config.teacher
        self._teacher = load_teacher(teacher) if teacher else None
        self._first_weight = config.first_weight if isinstance(config, TwoStageTrainConfig) else None
        self._inner_weight = config.inner_weight if isinstance(config, InnerTrainConfig) else 0.0
        self._inner = _inner_teacher(self._teacher, student) if self._teacher and self._inner_weight else None
        self.models = {"teacher": self._teacher} if self._teacher else {}

    def prepare(self, batch: Batch) -> Prepared:
        """Tokenise contexts and candidates; the teacher scores each row's listed ones, and words all of them."""
        layout = columns(batch.examples, batch.others, self._config.negatives, batch.draw)
        taught, lexical = self._teacher_scores(batch.examples, layout), self._lexical(batch.examples, layout)
        tokens = self._tokens(batch.examples, layout.texts)
        return self._prepared(tokens, partial(self._scored, layout, taught, lexical, tokens))

    def _lexical(self, examples: Sequence[Dialogue], layout: Columns) -> Tensor | None:
        """Return the lexical scores, (B, N); None where words do not count."""
        if self._words is None:
            return None
        return torch.from_numpy(self._words.rows([each.conversation for each in examples], layout.texts))

    def _tokens(self, examples: Sequence[Dialogue], texts: Sequence[str]) -> Tokens:
        contexts = [self._assembler.context(example.conversation)[0] for example in examples]
        return contexts, self._assembler.candidates(texts)[0]

    def _prepared(self, tokens: Tokens, scored: Callable[[ContextState, CandidateState], ScoredBatch]) -> Prepared:
        """Cut contexts and candidates into chunks; `scored` gets the states of all."""
        contexts, candidates = tokens
        budget = self._config.chunk_tokens
        context_chunks = length_batches([len(ids) for ids in contexts], budget)
        candidate_chunks = length_batches([len(ids) for ids in candidates], budget)

        def joined(encoded: Sequence[Encoded]) -> ScoredBatch:
            n = len(context_chunks)
            (vectors, mask, *late), own = _joined(encoded[:n], context_chunks), _joined(encoded[n:], candidate_chunks)
            return scored(ContextState(ContextCodes(vectors, mask), *late), CandidateState(*own))

        chunks = [partial(self._encode_contexts, [contexts[row] for row in chunk]) for chunk in context_chunks]
        chunks += [partial(self._encode_candidates, [candidates[at] for at in chunk]) for chunk in candidate_chunks]
        return Prepared([*chunks], joined)

    def _encode_contexts(self, contexts: Sequence[list[int]]) -> Encoded:
        encoder = self._encoder
        batch = encoder.context_batch(encoder.config, contexts, encoder.context.pad_id)
        state = encoder.encode_contexts(TensorBatch.of(batch, self._device))
        return tuple(tensor for tensor in (*state.first, state.late, state.mask) if tensor is not None)

    def _encode_candidates(self, candidates: Sequence[list[int]]) -> Encoded:
        encoder = self._encoder
        batch = encoder.candidate_batch(encoder.config, candidates, encoder.candidate.pad_id)
        state = encoder.encode_candidates(TensorBatch.of(batch, self._device))
        return tuple(tensor for tensor in state if tensor is not None)

    def _teacher_scores(self, examples: Sequence[Dialogue], layout: Columns) -> Tensor | None:
        """The teacher's scores of each row's gold reply and listed negatives, (B, N); words do not count."""
        if self._teacher is None:
            return None
        scores = torch.zeros(layout.listed.shape)
        for row, example in enumerate(examples):
            listed = layout.listed[row].nonzero()[:, 0].tolist()
            texts = [layout.texts[column] for column in listed]
            scores[row, listed] = torch.from_numpy(self._teacher.score_texts(example.conversation, texts, None))
        return scores

    def _scored(
        self,
        layout: Columns,
        taught: Tensor | None,
        lexical: Tensor | None,
        tokens: Tokens,
        contexts: ContextState,
        candidates: CandidateState,
    ) -> ScoredBatch:
        scores = self._encoder.late_scores(contexts, candidates)
        gold, allowed, listed = (tensor.to(scores.device) for tensor in layout[1:])
        ranked = scores
        if self._words is not None and lexical is not None:
            ranked = self._words.late_weight * scores + lexical.to(scores.device)
        loss = listwise(ranked, gold, allowed)
        if taught is not None:
            weight, softer = self._config.teacher_weight, 1 / self._config.teacher_temperature
            taught_loss = distillation(scores * softer, taught.to(scores.device) * softer, listed) / softer**2
            loss = (1 - weight) * loss + weight * taught_loss
            if self._inner is not None:
                pairs = [(row, column) for row, column in listed.nonzero().tolist()]
                loss = loss + self._inner_weight * self._inner.loss(*tokens, pairs, (contexts, candidates))
        if self._first_weight is not None:  # the first stage has to find what the second one scores
            first = listwise(self._encoder.first_scores(contexts, candidates), gold, allowed)
            loss = loss + self._first_weight * first
        return ScoredBatch(loss, ranked, gold, allowed, contexts.first)


class VectorClassObjective(VectorObjective):
    """Cross entropy of the class of each example's context and response."""

    def prepare(self, batch: Batch) -> Prepared:
        """Tokenise the contexts, and each distinct response once."""
        columns = {text: at for at, text in enumerate(dict.fromkeys(each.response for each in batch.examples))}
        places = [columns[each.response] for each in batch.examples]
        classes = classes_of(batch.examples, self._config)
        return self._prepared(self._tokens(batch.examples, list(columns)), partial(self._class_scores, places, classes))

    def _class_scores(
        self, places: list[int], classes: Tensor, contexts: ContextState, candidates: CandidateState
    ) -> ScoredBatch:
        rows = [
            self._encoder.class_logits(_row(contexts, row), _at(candidates, place)) for row, place in enumerate(places)
        ]
        return classwise(torch.cat(rows), classes)


def _row(contexts: ContextState, row: int) -> ContextState:
    own = ContextCodes._make(each[row : row + 1] for each in contexts.first)
    second_stage = [each if each is None else each[row : row + 1] for each in (contexts.late, contexts.mask)]
    return ContextState(own, *second_stage)


def _at(candidates: CandidateState, place: int) -> CandidateState:
    return CandidateState._make(each if each is None else each[place : place + 1] for each in candidates)


def _inner_teacher(teacher: NetworkRanker, student: Student) -> InnerTeacher:
    """Return what a teacher shows inside; raises InvalidInput where it does not fit, or reads other tokens."""
    assert isinstance(student.encoder, VectorEncoder)
    inner = student.encoder.inner_teacher(teacher.name, teacher.encoder, student.assembler.tokenizer)
    probe = [_PROBE.turns[0].text]
    if isinstance(teacher, CrossRanker):
        alike = teacher.tokenize_pairs(_PROBE, probe)[0] == student.assembler.pairs(_PROBE, probe)[0]
    else:
        alike = teacher.tokenize_candidates(probe)[0] == student.assembler.candidates(probe)[0]
    if not alike:
        raise InvalidInput(f"inner-weight: {teacher.name} has another tokenizer")
    return inner


def _joined(chunks: Sequence[Encoded], positions: Sequence[Sequence[int]]) -> Encoded:
    """Join the chunks of each tensor, (rows, R, ...). R becomes the largest one: padding lies at the end."""
    return tuple(in_order(_alike(tensors), positions) for tensors in zip(*chunks, strict=True))


def _alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    width = max(each.shape[1] for each in tensors)
    if all(each.shape[1] == width for each in tensors):
        return [*tensors]
    missing = [each.new_zeros(len(each), width - each.shape[1], *each.shape[2:]) for each in tensors]
    return [torch.cat(both, 1) for both in zip(tensors, missing, strict=True)]
