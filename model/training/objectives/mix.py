"""How a MixEncoder is trained: as every encoder with a second stage, with settings of its own."""

from polyrank.model.training.config import MixTrainConfig
from polyrank.model.training.objectives.late import TwoStageObjective


class MixObjective(TwoStageObjective):
    """In-batch loss of both stages' score."""

    settings = MixTrainConfig
