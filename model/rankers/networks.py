"""Models that have a network: an encoder that keeps both sides apart, or a Cross-encoder, loaded by its name."""

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import distinct_sequences
from polyrank.model.checkpoint.discovery import find_base, find_checkpoint
from polyrank.model.checkpoint.files import TOKENIZER_FILE, CheckpointFiles, backbone_file, read_object
from polyrank.model.checkpoint.lookup import architecture_of, called, is_checkpoint
from polyrank.model.checkpoint.quantised import Quantisation
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.inference.auto import Chooser, candidates
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.network import Network
from polyrank.model.inference.passes import PairForwards, VectorForwards
from polyrank.model.inference.runners import AUTO, FLOAT32, INT8, TORCH, Runner, is_cpu
from polyrank.model.inference.uni import UniForwards
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.rankers.lexical import LexicalRanker, TextRanker
from polyrank.model.registry import ARCHITECTURES, in_words
from polyrank.model.representations import Additions, ContextEncoding, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.telling import telling
from polyrank.model.text.assembly import Assembler, Conversation, Truncation
from polyrank.model.text.reading import Steps
from polyrank.model.text.sequences import Pairs
from polyrank.model.text.tokenizer import Token, Tokenizer

if TYPE_CHECKING:
    from polyrank.model.architectures.pairs import PairEncoder
    from polyrank.model.architectures.vector import VectorEncoder
    from polyrank.model.checkpoint.read import Encoder
    from polyrank.model.explainers import CrossExplainer, VectorExplainer

log = logging.getLogger(__name__)

_USUAL_LAYERS = 12  # of a transformer whose config.json does not say


class VectorRanker(VectorForwards, TextRanker):
    """Ranks by vectors of candidates that can be computed ahead."""

    retrieves: Literal[True] = True

    def __init__(
        self,
        name: str,
        network: "Network[VectorEncoder]",
        assembler: Assembler,
        files: CheckpointFiles,
        compiler: Compiler,
    ) -> None:
        layers = read_object(backbone_file(files.source)).get("num_hidden_layers", _USUAL_LAYERS)
        VectorForwards.__init__(self, network, compiler, layers)
        TextRanker.__init__(self, name, network.config, files.fingerprint)
        self.max_input_tokens = network.config.max_candidate_tokens  # limit for a candidate; longer ones are cut
        self._assembler, self._files = assembler, files

    @cached_property
    def explainer(self) -> "VectorExplainer":
        """What takes its scores apart; the first access may import torch and read the network."""
        _tell_loading(self._network, self.name)
        from polyrank.model.explainers import VectorExplainer

        return VectorExplainer(self.encoder, self._assembler)

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return the token ids of a context, and what did not fit."""
        return self._assembler.context(conversation)

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        return self._assembler.context_steps(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each candidate, and how many were cut."""
        return self._assembler.candidates(texts)

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Return the tokens of each text with the characters they stand for, uncut; `wrapped` in special tokens."""
        return self._assembler.tokenizer.pieces(texts, wrapped)

    def score_texts(
        self, conversation: Conversation, texts: Sequence[str], statistics: Statistics | None
    ) -> NDArray[np.float32]:
        """Score texts as replies, (N,): by vectors and, if the model has evidence, by words.

        Texts that are read alike have one vector, which does not depend on their order.

        statistics: of the pool that says how rare a word is; None: vectors alone count.
        """
        ids, _ = self.tokenize_context(conversation)
        if not texts:
            return np.zeros(0, np.float32)
        tokens, _ = self.tokenize_candidates(texts)
        distinct, places = distinct_sequences(tokens)
        made = self.represent_candidates([tokens[position] for position in distinct]).take(places)
        table = None if statistics is None else WordTable.of(texts, statistics)
        return self.scores(self.represent_contexts([ids])[0], made, self.list_additions(conversation, table))

    def scores(
        self, context: ContextEncoding, candidates: Representations, additions: Additions | None
    ) -> NDArray[np.float32]:
        """Return the scores that place candidates, (N,): by vectors and, where they count, by words."""
        if self.late_rows is None:
            return scores_of(candidates.first, context.codes, additions)
        late = self.late_scores(context, candidates)
        return late if additions is None else additions.to(late)

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)


class CrossRanker(PairForwards, TextRanker):
    """Ranks by reading context and candidate together, cut to `max_input_tokens`: the most accurate and the slowest."""

    retrieves: Literal[False] = False

    def __init__(
        self,
        name: str,
        network: "Network[PairEncoder]",
        assembler: Assembler,
        files: CheckpointFiles,
        compiler: Compiler,
    ) -> None:
        super().__init__(network, compiler)
        TextRanker.__init__(self, name, network.config, files.fingerprint)
        self.max_input_tokens = network.config.max_context_tokens + network.config.max_candidate_tokens
        self._assembler, self._files = assembler, files

    @cached_property
    def explainer(self) -> "CrossExplainer":
        """What tells the parts of its scores; the first access may import torch and read the network."""
        _tell_loading(self._network, self.name)
        from polyrank.model.explainers import CrossExplainer

        return CrossExplainer(self.encoder, self._assembler)

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Return the token ids of the context and of each text, and what did not fit."""
        return self._assembler.pairs(conversation, texts)

    def pair_steps(self, conversation: Conversation, texts: Sequence[str]) -> Steps[tuple[Pairs, Truncation]]:
        return self._assembler.pair_steps(conversation, texts)

    def score_texts(
        self, conversation: Conversation, texts: Sequence[str], statistics: Statistics | None, found: bool = False
    ) -> NDArray[np.float32]:
        """Score texts as replies, (N,): by the pairs and, if the model has evidence, by words.

        Texts that are read alike tie, and no score depends on their order.

        statistics: of the pool that says how rare a word is; None: the pairs alone count. found: the texts were found
        in that pool, where words count as in a search; else they are one list (`LexicalScore.turns_share`).
        """
        pairs, _ = self.tokenize_pairs(conversation, texts)
        distinct, places = distinct_sequences(pairs.candidates)
        scores = self.score_pairs(pairs.take(distinct))[places]
        if self.evidence is None or statistics is None:
            return scores
        table = WordTable.of(texts, statistics)
        evidence = self.evidence if found else self.evidence.in_list(conversation, table)
        return self.evidence.scores(scores, evidence.values(conversation, table))

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)


class UniRanker(CrossRanker, UniForwards):
    """Ranks by reading each candidate beside a context that was read once: nearly as a CrossRanker, and faster."""


def _tell_loading(network: Network[Any], name: str) -> None:
    """Say why the first explanation takes seconds: it may import torch, and reads the network."""
    if not network.is_read:
        log.info("the network is loaded to explain scores", extra={"fields": {"model": name}})


NetworkRanker = VectorRanker | CrossRanker
Retriever = VectorRanker | LexicalRanker
Ranker = NetworkRanker | LexicalRanker


def load_network(
    name: str | Path,
    device: str,
    backend: str,
    precision: str,
    disk: DiskCache | None = None,
    quantisation: Quantisation | None = None,
) -> NetworkRanker:
    """Load a Bi-, Poly- or Cross-encoder; arguments and errors as `polyrank.model.rankers.load.load`.

    quantisation: for int8, instead of the checkpoint's.
    """
    with telling(f"loading {called(name)}"):
        stored = find_checkpoint(Path(name)) if is_checkpoint(name) else find_base(str(name))
        network = Network(stored.files.config, lambda: _moved(stored.read(), device), _identity(stored.files))
        asked, where = Runner(backend, precision), _known(device)
        found = quantisation or _quantisation(stored.files, asked, where)
        return _ranker(str(name), network, stored.files, asked, where, disk, found)


def from_base(
    name: str, config: ModelConfig | None = None, backend: str = TORCH, precision: str = FLOAT32
) -> NetworkRanker:
    """Start a model from the weights of a base model, given by its directory or name.

    `config` says what to make of it: codes and the Cross-encoder's head are drawn at random, `base_name` and
    `base_sha256` are filled in. None: the zero-shot Bi-encoder that the base model was published as.

    Raises InvalidInput for a config without a network; other errors as `polyrank.load`.
    """
    architecture = architecture_of(name) if config is None else config.architecture
    if ARCHITECTURES[architecture].encoder is None:
        raise InvalidInput(f"{in_words(architecture)} begins from no base model; load it by polyrank.load")
    if config is None:
        return load_network(name, "cpu", backend, precision)
    from polyrank.model.checkpoint.read import begin_from_base

    encoder, files = begin_from_base(name, config)
    return _ranker(name, Network.of(encoder), files, Runner(backend, precision), "cpu")


def _ranker(
    name: str,
    network: Network[Any],
    files: CheckpointFiles,
    asked: Runner,
    device: str,
    disk: DiskCache | None = None,
    quantisation: Quantisation | None = None,
) -> NetworkRanker:
    assembler = Assembler(Tokenizer(files.source / TOKENIZER_FILE), files.config)
    # On a GPU torch runs the network, which has to be read.
    found = candidates(*asked, device, quantisation)
    chooser = Chooser(found, device, assembler, asked.precision != AUTO) if len(found) > 1 else None
    compiler = Compiler(found[0], chooser, disk if is_cpu(device) else None)
    row = ARCHITECTURES[files.config.architecture]
    kind = VectorRanker if row.retrieves else UniRanker if row.reads_once else CrossRanker
    return kind(name, network, assembler, files, compiler)


def _identity(files: CheckpointFiles) -> str:
    """Name the network with all that may be made of it: its fingerprint, and what calibration for int8 found."""
    said = files.config.quantisation
    return f"{files.fingerprint} {said.sha256}" if said else files.fingerprint


def _quantisation(files: CheckpointFiles, asked: Runner, device: str) -> Quantisation | None:
    """Return what int8 takes to know, if it was asked for or `auto` may take it; None: it is not offered."""
    if asked.precision == INT8:
        return files.quantisation()
    said = files.config.quantisation
    if said is None or asked.precision != AUTO or asked.backend == TORCH or not is_cpu(device):
        return None
    try:
        found, why = files.quantisation(), said.why_not_chosen()
    except (InvalidInput, CheckpointInvalid) as error:
        found, why = None, str(error)
    if why:
        log.warning("int8 is left out", extra={"fields": {"why": why}})
    return None if why else found


def _known(device: str) -> str:
    """Return a device that torch knows by that name, which need not be there; raises InvalidInput for another."""
    if device != "cpu":
        import torch

        try:
            torch.device(device)
        except RuntimeError as error:
            raise _unusable(device, error) from error
    return device


def _moved(encoder: "Encoder", device: str) -> "Encoder":
    try:
        return encoder.to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        raise _unusable(device, error) from error


def _unusable(device: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"nothing can run on the device {device!r}: {str(error).splitlines()[0]}")
