"""How a Deformer is trained: as every encoder with a second stage, and maybe towards a larger one's upper states."""

from polyrank.model.architectures.deformer import DeformerEncoder
from polyrank.model.rankers.networks import NetworkRanker
from polyrank.model.training.config import DeformerTrainConfig
from polyrank.model.training.objectives.inner import InnerObjective, StateTeacher


class DeformerObjective(InnerObjective):
    """In-batch loss of both stages' score, and that of the upper states."""

    settings = DeformerTrainConfig

    def inner_teacher(self, teacher: NetworkRanker) -> StateTeacher:
        """Return what teaches the upper states."""
        assert isinstance(self._encoder, DeformerEncoder)
        return StateTeacher(teacher, self._encoder, self._assembler)
