"""How a Deformer is trained: as every encoder with a second stage, with settings of its own."""

from polyrank.model.training.config import DeformerTrainConfig
from polyrank.model.training.objectives.late import TwoStageObjective


class DeformerObjective(TwoStageObjective):
    """In-batch loss of both stages' score."""

    settings = DeformerTrainConfig
