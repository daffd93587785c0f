"""Pre-training on conversations, from a base model to a base model that knows them.

It guesses masked words, and whether a reply is the right one (Humeau et al. 4.1). Axes: B sequences, T tokens, D
dimensions, V words of the vocabulary.
"""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import TokenBatch, joined, pair_batches
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.files import BASE_BACKBONE_FILE, TOKENIZER_FILE, WEIGHTS_FILE, backbone_file
from polyrank.model.checkpoint.lookup import PUBLISHED_FILES, called
from polyrank.model.durable import replacing, write_atomically
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.sequences import Pairs
from polyrank.model.training.config import STATE_FILE, Data, PretrainConfig
from polyrank.model.training.data import OnProgress, columns, no_progress
from polyrank.model.training.loop import Begun, Watch, processes
from polyrank.model.training.objective import (
    Batch,
    Encode,
    Encoded,
    Objective,
    Prepared,
    ScoredBatch,
    in_order,
)
from polyrank.model.training.precision import precision_on
from polyrank.model.training.recipes import PRETRAINING_FILE
from polyrank.model.training.run import OnSurvey, require_no_classes, summary, surveyed, to_the_end
from polyrank.model.training.student import Student, start

_MASKED_SHARE, _RANDOM_SHARE = 0.8, 0.1  # of the chosen tokens; the rest stay as they are (Devlin et al. 2019)


class WordGuesser(CrossEncoder):
    """A Cross-encoder, whose score says whether a reply is the right one, that also guesses masked words.

    Attributes:
        word: from an output to what is compared with the word embeddings: `norm(gelu(W h))`.
        bias: of each word, (V,).
    """

    def __init__(self, cross: CrossEncoder) -> None:
        super().__init__(cross.config, cross.encoder)
        self.head = cross.head
        dim = cross.encoder.dim
        self.word = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(cross.encoder.vocabulary))

    def word_loss(self, batch: TensorBatch, chosen: Tensor, words: Tensor) -> Tensor:
        """Return the sum of the cross entropies of the words at the chosen places.

        chosen: (B, T), True at those places. words: their words, in the order of places.
        """
        states = self.encoder(batch)[chosen].float()
        embeddings: Tensor = self.encoder.transformer.get_input_embeddings().weight
        return F.cross_entropy(F.linear(self.word(states), embeddings, self.bias), words, reduction="sum")


class PretrainObjective(Objective[WordGuesser, PretrainConfig]):
    """The mean loss of masked words, and that of telling right replies from drawn ones; both over the whole batch.

    With `alternate` the batches of a run have one of them, in turns; those of the selection slice have both.
    """

    def take(self, examples: Iterator[Dialogue]) -> list[Dialogue]:
        """Take as many examples as have `batch_tokens`, the last one being that which reaches it."""
        if not self._config.batch_tokens:
            return super().take(examples)
        batch, tokens = list[Dialogue](), 0
        while tokens < self._config.batch_tokens and (example := next(examples, None)) is not None:
            batch.append(example)
            pairs = self._pairs([example], [example.response])
            tokens += len(pairs.contexts[0]) + len(pairs.candidates[0])
        return batch

    def prepare(self, batch: Batch) -> Prepared:
        """Mask words of the right pairs, and replace half of the replies."""
        turn = None if batch.number is None or not self._config.alternate else batch.number % 2
        right = self._pairs(batch.examples, [example.response for example in batch.examples])
        replies, is_right = drawn_replies(batch)
        mixed = self._pairs(batch.examples, replies)
        cuts = [pair_batches(pairs, self._config.chunk_tokens) for pairs in (right, mixed)]
        masked = [self._masked(right.take(chunk), batch.draw) for chunk in cuts[0]] if turn != 1 else []
        count = sum(len(words) for _, _, words in masked)
        chunks: list[Encode] = [
            *[partial(self._word_losses, *each) for each in masked],
            *[partial(self._pair_logits, mixed.take(chunk)) for chunk in cuts[1] if turn != 0],
        ]

        def scored(encoded: Sequence[Encoded]) -> ScoredBatch:
            words, pairs = ([each for (each,) in part] for part in (encoded[: len(masked)], encoded[len(masked) :]))
            logits = in_order(pairs, cuts[1]) if pairs else torch.zeros(len(is_right), device=self._device)
            gold = torch.tensor(is_right, device=logits.device)
            loss = torch.cat(words).sum() / max(1, count) if words else logits.new_zeros(())
            if pairs:
                loss = loss + F.binary_cross_entropy_with_logits(logits, gold.float())
            both = torch.stack([torch.zeros_like(logits), logits], dim=1)
            return ScoredBatch(loss, both, gold.long(), torch.ones_like(both, dtype=torch.bool))

        return Prepared(chunks, scored)

    def _pairs(self, examples: Sequence[Dialogue], replies: Sequence[str]) -> Pairs:
        rows = zip(examples, replies, strict=True)
        return Pairs.join([self._assembler.pairs(example.conversation, [reply])[0] for example, reply in rows])

    def _masked(self, pairs: Pairs, draw: random.Random) -> tuple[TokenBatch, NDArray[np.bool_], NDArray[np.int64]]:
        """Return a batch with words masked, which places those are, and their words."""
        batch, tokenizer = joined(pairs, self._encoder.encoder.pad_id), self._assembler.tokenizer
        assert tokenizer.mask_id is not None, "the run checks it"
        rows = batch.ids.tolist()
        vocabulary = self._encoder.encoder.vocabulary
        shown = [
            mask_words(ids, tokenizer.special_ids, tokenizer.mask_id, vocabulary, self._config.mask_share, draw)
            for ids in rows
        ]
        chosen = np.array([[place in places for place in range(len(ids))] for ids, places in shown]) & batch.mask
        return batch._replace(ids=np.array([ids for ids, _ in shown])), chosen, batch.ids[chosen]

    def _word_losses(self, batch: TokenBatch, chosen: NDArray[np.bool_], words: NDArray[np.int64]) -> Encoded:
        device = self._device
        hidden, targets = (torch.from_numpy(each).to(device) for each in (chosen, words))
        return (self._encoder.word_loss(TensorBatch.of(batch, device), hidden, targets)[None],)

    def _pair_logits(self, pairs: Pairs) -> Encoded:
        batch = joined(pairs, self._encoder.encoder.pad_id)
        return (self._encoder.joint_scores(TensorBatch.of(batch, self._device)),)


def mask_words(
    ids: Sequence[int], special: Set[int], mask_id: int, vocabulary: int, share: float, draw: random.Random
) -> tuple[list[int], set[int]]:
    """Choose that share of the ordinary tokens, at least one, and hide them; returns the new ids and the places.

    Of the chosen ones 80 % become the mask, 10 % any token of the vocabulary, and 10 % stay.

    >>> mask_words([1, 7, 8, 2], {1, 2}, 3, 100, 1.0, random.Random(1))[1]
    {1, 2}
    """
    ordinary = [place for place, own in enumerate(ids) if own not in special]
    places = set(draw.sample(ordinary, min(len(ordinary), max(1, round(share * len(ordinary))))))
    new_ids = list(ids)
    for place in sorted(places):
        kind = draw.random()
        if kind < _MASKED_SHARE:
            new_ids[place] = mask_id
        elif kind < _MASKED_SHARE + _RANDOM_SHARE:
            new_ids[place] = draw.randrange(vocabulary)
    return new_ids, places


def drawn_replies(batch: Batch) -> tuple[list[str], list[bool]]:
    """Return a reply for each example, and whether it is the right one; half of them are drawn from other examples.

    A drawn reply is no right reply to an equal context. Where all others are right, too, the right one stays.
    """
    layout = columns(batch.examples, (), 1, batch.draw)
    replies, is_right = [], []
    for row, example in enumerate(batch.examples):
        others = [at for at in layout.allowed[row].nonzero()[:, 0].tolist() if at != int(layout.gold[row])]
        right = batch.draw.random() < 0.5 or not others
        replies.append(example.response if right else layout.texts[batch.draw.choice(others)])
        is_right.append(right)
    return replies, is_right


@dataclass(frozen=True)
class PretrainStudent(Student):
    """A transformer under pre-training, which is written as a base model."""

    def save(self, directory: Path, training: Mapping[str, Any]) -> None:
        """Write the transformer as it is now in the layout of published models; the heads are not kept."""
        directory.mkdir(parents=True, exist_ok=True)
        source = self.directory
        if backbone_file(source).name == BASE_BACKBONE_FILE:  # published: how it makes a vector stays
            for file in sorted({file for pattern in PUBLISHED_FILES for file in source.glob(pattern)}):
                if file.name != WEIGHTS_FILE or file.parent != source:
                    (directory / file.relative_to(source)).parent.mkdir(exist_ok=True)
                    shutil.copyfile(file, directory / file.relative_to(source))
        shutil.copyfile(backbone_file(source), directory / BASE_BACKBONE_FILE)
        shutil.copyfile(source / TOKENIZER_FILE, directory / TOKENIZER_FILE)
        assert isinstance(self.encoder, CrossEncoder)
        tensors = self.encoder.encoder.transformer.state_dict()
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with replacing(directory / WEIGHTS_FILE) as temporary:
            save_file(weights, temporary, metadata={"format": "pt"})
        write_atomically(directory / PRETRAINING_FILE, orjson.dumps(dict(training), option=orjson.OPT_INDENT_2))


def pretrain(
    config: PretrainConfig,
    data: Data,
    output: Path,
    *,
    resume: bool = False,
    on_survey: OnSurvey,
    watch: Watch,
    on_progress: OnProgress = no_progress,
) -> dict[str, Any] | None:
    """Pre-train a base model, and write that with the least loss on the selection slice as a base model.

    Arguments and errors are those of `polyrank.model.training.run.train`.

    Returns:
        How it was made; None in all but the main one of several processes.

    Raises:
        InvalidInput: also for a base without a mask token.
    """
    config = replace(config, precision=precision_on(processes().device, config.precision))
    ended = to_the_end(partial(_begun, config, data), output, resume, on_survey, watch, on_progress)
    if ended is None:
        return None
    path = output / PRETRAINING_FILE
    record: dict[str, Any] = {**orjson.loads(read_input(path)), **summary(*ended)}
    write_atomically(path, orjson.dumps(record, option=orjson.OPT_INDENT_2))
    (output / STATE_FILE).unlink(missing_ok=True)  # last, so that a run killed before can be resumed
    return record


def _begun(config: PretrainConfig, data: Data, on_progress: OnProgress) -> Begun:
    on_progress(f"loading {called(config.base)}", 0, None)
    began = start(config)
    if began.assembler.tokenizer.mask_id is None:
        raise InvalidInput(f"{config.base} has no mask token, so words cannot be masked; give another base model")
    assert isinstance(began.encoder, CrossEncoder)
    corpora = surveyed(data, on_progress)
    require_no_classes(corpora)
    student = PretrainStudent(WordGuesser(began.encoder), began.config, began.directory, began.assembler)
    return Begun(config, student, corpora, PretrainObjective)
