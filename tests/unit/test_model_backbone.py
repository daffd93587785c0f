"""Transformers of several families, and a layer in plain torch."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny import CLS, DIM, PAD, SEP, VOCABULARY, write_base
from tiny_training import run, settings, write_examples
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    RobertaConfig,
)

import polyrank
from polyrank.model.architectures.backbone import Backbone, Layer, TensorBatch, layers_of
from polyrank.model.architectures.batching import pad
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.training.student import start
from polyrank.model.training.tuning import set_dropout

POSITIONS = 300
COMMON: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": DIM, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3, "pad_token_id": PAD, "bos_token_id": CLS, "eos_token_id": SEP,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What a family's names are: of its layers and of what makes ids the first layer's input; and its linear maps."""

    config: Callable[[], PretrainedConfig]
    layers: str = "encoder.layer."
    embeddings: tuple[str, ...] = ("embeddings.",)
    maps: int = 12


FAMILIES = {
    "bert": Family(lambda: BertConfig(**COMMON)),
    "roberta": Family(lambda: RobertaConfig(**{**COMMON, "pad_token_id": 1})),
    "mpnet": Family(lambda: MPNetConfig(**{**COMMON, "pad_token_id": 1})),
    "distilbert": Family(
        lambda: DistilBertConfig(**COMMON, dim=DIM, hidden_dim=32, n_layers=2, n_heads=2), "transformer.layer."
    ),
    "electra": Family(
        lambda: ElectraConfig(**COMMON, embedding_size=8), embeddings=("embeddings.", "embeddings_project.")
    ),
    "albert": Family(
        lambda: AlbertConfig(**COMMON, embedding_size=8, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
        "",
        ("embeddings.", "encoder.embedding_hidden_mapping_in."),
        maps=6,  # of the one layer that all others are
    ),
    "modernbert": Family(
        lambda: ModernBertConfig(
            **COMMON, cls_token_id=CLS, sep_token_id=SEP, attention_dropout=0.1, mlp_dropout=0.1, embedding_dropout=0.1
        ),
        "layers.",
        maps=8,
    ),
}
EACH = pytest.mark.parametrize("family", FAMILIES)
COUNTED = [name for name, each in FAMILIES.items() if each.layers]


def write(directory: Path, config: PretrainedConfig) -> Path:
    """The tiny base of `write_base`, its transformer of another family."""
    write_base(directory, seed=3)
    torch.manual_seed(3)
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    save_file(AutoModel.from_config(config).state_dict(), str(directory / "model.safetensors"))
    return directory


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("families")
    return {name: write(parent / name, family.config()) for name, family in FAMILIES.items()}


def named(base: Path, **fields: Any) -> tuple[set[str], set[str]]:
    """The context transformer's parameters: those that are tuned, and all, without what all names begin with."""
    student = start(settings(base, **fields))
    head = "context.transformer."
    everything = {name.removeprefix(head) for name, _ in student.encoder.named_parameters() if name.startswith(head)}
    return {name.removeprefix(head) for name in student.trainable() if name.startswith(head)}, everything


@EACH
def test_a_base_ranks_alike_alone_and_beside_longer_ones(bases: dict[str, Path], family: str) -> None:
    ranker = polyrank.load(bases[family])
    together = dict(ranker.rank(["w1 w2"], ["w4", "w5 w6 w7 w8 w9", "w30 w31"]))
    assert len(set(together.values())) == 3
    [(_, alone)] = ranker.rank(["w1 w2"], ["w4"])
    assert alone == pytest.approx(together[0], abs=1e-5)


@pytest.mark.parametrize(("family", "pad_id", "reserved"), [
    *((family, PAD, 0) for family in ("bert", "distilbert", "electra", "albert", "modernbert")),
    ("roberta", PAD, 1),
    ("roberta", 1, 2),
    ("mpnet", PAD, 2),  # MPNet counts from 2 whatever its padding token is
    ("mpnet", 1, 2),
])  # fmt: skip
def test_the_longest_sequence_is_the_one_with_a_position_for_every_token(
    family: str, pad_id: int, reserved: int
) -> None:
    config = FAMILIES[family].config()
    config.pad_token_id = pad_id
    backbone = Backbone(config).eval()
    longest = backbone.max_tokens
    assert longest == POSITIONS - reserved
    assert backbone(TensorBatch.of(pad([[CLS] * longest], pad_id))).shape == (1, longest, DIM)
    if family != "modernbert":  # rotary positions have no end
        with pytest.raises((IndexError, RuntimeError)):
            backbone(TensorBatch.of(pad([[CLS] * (longest + 1)], pad_id)))


@EACH
def test_attention_runs_in_torchs_fused_kernel_where_the_family_can(family: str) -> None:
    config = FAMILIES[family].config()
    # What a config.json asks for is not obeyed.
    config._attn_implementation = "flash_attention_2"
    config._experts_implementation = "owner/kernel"
    assert Backbone(config).transformer.config._attn_implementation == ("eager" if family == "mpnet" else "sdpa")


@EACH
@pytest.mark.parametrize("attention", ["as built", "eager"])
def test_without_dropout_a_pass_in_training_is_the_same_again(
    bases: dict[str, Path], family: str, attention: str
) -> None:
    encoder = start(settings(bases[family], dropout=None)).encoder.train()
    backbone: Any = encoder.context
    if attention == "eager":
        backbone.transformer.set_attn_implementation("eager")
    batch = TensorBatch.of(pad([[CLS, 4, 5, 6, SEP], [CLS, 7, SEP]], backbone.pad_id))
    torch.manual_seed(0)
    assert not torch.equal(backbone(batch), backbone(batch)), "the family has dropout to set"
    set_dropout(encoder, 0.0)
    assert torch.equal(backbone(batch), backbone(batch))
    set_dropout(encoder, 0.3)
    assert not torch.equal(backbone(batch), backbone(batch))


@pytest.mark.parametrize("rate", ["attention_dropout", "mlp_dropout", "embedding_dropout"])
def test_each_of_modernberts_rates_is_set(rate: str) -> None:
    config = FAMILIES["modernbert"].config()
    for each in ("attention_dropout", "mlp_dropout", "embedding_dropout"):
        setattr(config, each, 0.5 if each == rate else 0.0)
    holder = torch.nn.Module()
    holder.context = Backbone(config).train()
    batch = TensorBatch.of(pad([[CLS, 4, 5, 6, SEP]], PAD))
    assert not torch.equal(holder.context(batch), holder.context(batch))
    set_dropout(holder, 0.0)
    assert torch.equal(holder.context(batch), holder.context(batch))


@EACH
def test_all_and_all_but_embeddings(bases: dict[str, Path], family: str) -> None:
    tuned, everything = named(bases[family], tune="all")
    assert tuned == everything
    tuned, _ = named(bases[family], tune="all-but-embeddings")
    assert everything - tuned == {name for name in everything if name.startswith(FAMILIES[family].embeddings)}
    assert tuned < everything


@pytest.mark.parametrize("family", COUNTED)
def test_the_top_layer(bases: dict[str, Path], family: str) -> None:
    tuned, everything = named(bases[family], tune="top-1")
    assert tuned == {name for name in everything if name.startswith(f"{FAMILIES[family].layers}1.")} != set()


@pytest.mark.parametrize(
    ("family", "tune"), [*((name, "all-but-embeddings") for name in FAMILIES), *((name, "top-1") for name in COUNTED)]
)
def test_adapters_are_beside_the_linear_maps_that_would_be_tuned(
    bases: dict[str, Path], family: str, tune: str
) -> None:
    whole, _ = named(bases[family], tune=tune)
    adapters, _ = named(bases[family], tune=tune, lora_rank=2)
    maps = {name.partition(".parametrizations.")[0] for name in adapters}
    assert adapters == {f"{name}.parametrizations.weight.0.{side}" for name in maps for side in "ab"}
    assert {f"{name}.weight" for name in maps} <= whole
    assert len(maps) == FAMILIES[family].maps // (2 if tune == "top-1" else 1)


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("rank", [0, 2])
def test_training_changes_what_it_should_and_nothing_else(
    bases: dict[str, Path], tmp_path: Path, family: str, rank: int
) -> None:
    config = settings(bases[family], steps=4, shared_encoder=True, lora_rank=rank, tune="all-but-embeddings")
    ranker, seen = run(config, write_examples(tmp_path / "d.jsonl", 24), tmp_path / "o")
    assert len(seen.losses) == 4
    assert ranker.config.training["step"] > 0, "the best checkpoint is a trained one"
    before, after = start(settings(bases[family])).encoder.state_dict(), ranker.encoder.state_dict()
    head = "context.transformer."
    changed = {name.removeprefix(head) for name in after if head in name and not torch.equal(before[name], after[name])}
    tuned, _ = named(bases[family], tune="all-but-embeddings", lora_rank=rank)
    wanted = {name.partition(".parametrizations.")[0] + ".weight" for name in tuned} if rank else tuned
    unfelt = {name for name in wanted if name.endswith(("key.bias", ".k.bias", "k_lin.bias"))}  # softmax takes it out
    assert wanted - unfelt <= changed <= wanted


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_layers_that_share_their_weights_cannot_be_counted(
    bases: dict[str, Path], architecture: str, rank: int
) -> None:
    with pytest.raises(
        InvalidInput, match=r"^tune is 'top-1'; give all or all-but-embeddings: the layers of albert share"
    ):
        start(settings(bases["albert"], architecture=architecture, tune="top-1", lora_rank=rank))


def test_a_family_without_gradient_checkpointing_is_told_so_before_the_run(bases: dict[str, Path]) -> None:
    with pytest.raises(InvalidInput, match=r"^mpnet keeps all layers' activations; train without --gradient-checkp"):
        start(settings(bases["mpnet"], gradient_checkpointing=True))
    assert start(settings(bases["modernbert"], gradient_checkpointing=True)).trainable()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family whose parts have other names, and whose maps are not torch's."""
    config = GPT2Config(
        vocab_size=len(VOCABULARY), n_positions=POSITIONS, n_embd=DIM, n_layer=2, n_head=2, bos_token_id=CLS,
        eos_token_id=SEP,
    )  # fmt: skip
    return write(tmp_path_factory.mktemp("gpt2") / "base", config)


@pytest.mark.parametrize(("fields", "message"), [
    (
        {"tune": "all-but-embeddings"},
        "tune is 'all-but-embeddings'; give all: the layers of gpt2 .* than those of BERT",
    ),
    ({"tune": "top-1"}, "tune is 'top-1'; give all: the layers of gpt2 .* than those of BERT, RoBERTa,"),
    ({"tune": "all", "lora_rank": 2}, "gpt2 has no linear map to put an adapter beside; train without --lora-rank"),
])  # fmt: skip
@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_where_nothing_of_the_transformer_would_be_tuned_the_run_is_refused(
    gpt2: Path, architecture: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as told:
        start(settings(gpt2, architecture=architecture, **fields))
    assert "\n" not in str(told.value)


DIM, ROWS = 16, 7


def made(activation: str) -> Backbone:
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return Backbone(BertConfig(vocab_size=9, initializer_range=0.5, hidden_act=activation, **sizes)).eval()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_it_is_the_transformers_own(activation: str) -> None:
    backbone = made(activation)
    [theirs] = layers_of(backbone, "a test")
    ours = Layer.like(backbone)
    states, mask = torch.randn(2, ROWS, DIM), torch.ones(2, ROWS, dtype=torch.bool)
    mask[1, 4:] = False
    with torch.no_grad():
        ours.take(theirs)
        hidden = torch.zeros(2, 1, 1, ROWS).masked_fill(~mask[:, None, None], float("-inf"))
        read = theirs(states, attention_mask=hidden)
        found = ours.attended(states, ours.query(states), ours.key(states), ours.value(states), mask)
    expected = read[0] if isinstance(read, tuple) else read
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)


def test_a_function_that_is_not_known_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match="hidden_act is 'quick_gelu'; layers are copied for gelu, "):
        Layer.like(made("quick_gelu"))
