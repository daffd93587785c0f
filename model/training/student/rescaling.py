"""Re-scale a transformer's outputs to the spread of another's, before training (Humeau et al. 5.3).

Weights that were trained without decay may give outputs so large that attention over them saturates. The paper
re-scales the last linear layer so that the standard deviation of its output matches BERT's. In transformers of BERT's
kind the last linear map is that of the last norm.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_late
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.student.student import Student
from polyrank.model.training.student.tuning import backbones

_BATCH_TOKENS = 4096


def rescale(student: Student, like: str, conversations: Sequence[Conversation]) -> None:
    """Multiply the last norm of each transformer, so that its outputs vary as those of the model `like`.

    Both are measured over all components of all tokens of these conversations, each with its own tokenizer. `like` is a
    base model, or a checkpoint of a Bi- or Poly-encoder, whose context side counts.

    Raises:
        InvalidInput: vectors of unit length are compared, so a factor changes nothing; or the transformer ends with no
            norm of its own.
        WrongKind, ModelNotFound, CheckpointInvalid: `like` cannot be used.
    """
    if student.config.normalize:
        raise InvalidInput("output-like changes nothing where vectors have unit length; give --no-normalize too")
    other = load_late(like)
    wanted = output_std(other.encoder.context, [other.tokenize_context(each)[0] for each in conversations])
    own = [student.assembler.context(each)[0] for each in conversations]
    for backbone in backbones(student.encoder).values():
        _multiply(backbone, wanted / output_std(backbone, own), own[:1])


def output_std(backbone: Backbone, texts: Sequence[Sequence[int]]) -> float:
    """Return the standard deviation of all components of the outputs of tokenised texts."""
    return float(_outputs(backbone, texts).std(correction=0))


def _multiply(backbone: Backbone, factor: float, probe: Sequence[Sequence[int]]) -> None:
    norms = [module for module in backbone.transformer.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    before = _outputs(backbone, probe)
    with torch.no_grad():
        for parameter in norms[-1].parameters() if norms else ():
            parameter.mul_(factor)
    if not torch.allclose(_outputs(backbone, probe), factor * before, rtol=1e-3, atol=1e-3 * factor):
        family = backbone.transformer.config.model_type
        raise InvalidInput(f"output-like multiplies the last norm: {family} shares it among its layers, or has none")


@torch.inference_mode()
def _outputs(backbone: Backbone, texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the outputs of all tokens, (tokens, D), with dropout off."""
    was = backbone.training
    backbone.eval()
    batches = [
        pad([texts[row] for row in rows], backbone.pad_id)
        for rows in length_batches([len(ids) for ids in texts], _BATCH_TOKENS)
    ]
    found = torch.cat([backbone(batch)[batch.mask].float() for batch in batches])
    backbone.train(was)
    return found
