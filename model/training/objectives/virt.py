"""How a VIRT is trained: as every encoder with a second stage, with settings of its own."""

from polyrank.model.training.config import VirtTrainConfig
from polyrank.model.training.objectives.late import TwoStageObjective


class VirtObjective(TwoStageObjective):
    """In-batch loss of both stages' score."""

    settings = VirtTrainConfig
