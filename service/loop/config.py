"""The settings of the loop: the file that `polyrank loop run --config` names."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polyrank.index_builder.layout import why_no_store
from polyrank.service.errors import SettingsError
from polyrank.service.settings import explained, read_toml

_OURS: Final = ("--base", "--data", "--model", "--output", "--pool", "--resume", "--train", "--json", "--push-to-hub")

Share = Annotated[float, Field(gt=0, le=0.5)]


class LoopConfig(BaseModel):
    """What a run does, and how long its steps are."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    store: Path = Field(description="the store's directory, on this machine")
    golden: tuple[Path, ...] = Field(default=(), description="files of dialogues that judge each new model")
    train: tuple[str, ...] = Field(default=(), description='options of `polyrank train`, such as `["--steps", "500"]`')
    mine: tuple[str, ...] = Field(default=(), description="options of `polyrank mine`")
    least_examples: int = Field(default=200, ge=1, le=1_000_000, description="new examples that a run needs")
    canary: Literal["on", "off"] = Field(
        default="on", description="off: nobody tells how conversations end, so the gate alone decides"
    )
    canary_shares: tuple[Share, ...] = Field(
        default=(0.05, 0.2, 0.5), description="of the conversations that the new model answers, by step"
    )
    step_hours: float = Field(default=12.0, ge=0, le=720, description="how long a step lasts at least")
    canary_hours: float = Field(default=168.0, ge=0, le=8760, description="an undecided canary ends then")
    settle_minutes: float = Field(
        default=30.0, ge=0, le=10_080, description="how long after its beginning a conversation is counted"
    )
    watch_hours: float = Field(default=48.0, ge=0, le=8760, description="how long the old model is kept in use")
    watch_share: Share = Field(default=0.05, description="of the conversations that it answers meanwhile")
    look_seconds: float = Field(default=60.0, ge=0.1, le=3600, description="between two looks at outcomes")

    @field_validator("train", "mine")
    @classmethod
    def _leave_ours(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            name = option.partition("=")[0]
            if name.startswith("--") and any(each.startswith(name) for each in _OURS):  # options may be cut short
                raise ValueError(f"{option} is given by the loop; leave it out")
        return options

    @field_validator("canary_shares")
    @classmethod
    def _check_order(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not shares:
            raise ValueError('must not be empty; canary = "off" does without')
        if sorted(set(shares)) != list(shares):
            raise ValueError("each share must be larger than the one before")
        return shares

    @classmethod
    def load(cls, path: Path) -> "LoopConfig":
        """Read the file; paths in it are taken from the directory that the command runs in.

        Raises SettingsError, in one line, where the file or a setting is wrong or the store is none.
        """
        values: dict[str, Any] = read_toml(path, cls.model_fields, str(path))
        try:
            config = cls(**values)
        except ValidationError as invalid:
            raise SettingsError(f"{path}: {explained(invalid, cls.model_fields)}") from None
        if why := why_no_store(config.store):
            raise SettingsError(f"{path}: store: {why}")
        if missing := [str(each) for each in config.golden if not each.is_file()]:
            raise SettingsError(f"{path}: golden: no file {missing[0]}")
        return config
