"""How a VIRT is trained: as every encoder with a second stage, and maybe towards a Cross-encoder's attention."""

from polyrank.model.rankers.networks import NetworkRanker
from polyrank.model.training.config import VirtTrainConfig
from polyrank.model.training.objectives.inner import AttentionTeacher, InnerObjective


class VirtObjective(InnerObjective):
    """In-batch loss of both stages' score, and that of the attention."""

    settings = VirtTrainConfig

    def inner_teacher(self, teacher: NetworkRanker) -> AttentionTeacher:
        """Return what teaches attention."""
        return AttentionTeacher(teacher, self._encoder, self._assembler)
