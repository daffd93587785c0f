"""The loop's settings: what may stand in the file, and what is said of what may not."""

from pathlib import Path

import pytest

from polyrank.service.errors import SettingsError
from polyrank.service.loop.config import LoopConfig


def loaded(tmp_path: Path, content: str) -> LoopConfig:
    """Read a file with this content, in which STORE is an empty directory."""
    (tmp_path / "store").mkdir(exist_ok=True)
    path = tmp_path / "loop.toml"
    path.write_text(content.replace("STORE", f'store = "{tmp_path}/store"'))
    return LoopConfig.load(path)


def test_a_store_is_enough(tmp_path: Path) -> None:
    config = loaded(tmp_path, "STORE")
    assert (config.canary, config.canary_shares, config.least_examples) == ("on", (0.05, 0.2, 0.5), 200)
    assert (config.canary_hours, config.settle_minutes, config.watch_hours, config.watch_share) == (168, 30, 48, 0.05)
    assert loaded(tmp_path, 'STORE\ntrain = ["--steps", "5"]').train == ("--steps", "5")


@pytest.mark.parametrize(("content", "says"), [
    ("step_hour = 3", "unknown setting in {}: step_hour; did you mean step_hours?"),
    ("canary = 'on'", "{}: store: is required"),
    ("store = 3", "{}: store: must be a string"),
    ("STORE\ncanary = 'of'", "{}: canary: must be 'on' or 'off'"),
    ("STORE\ncanary = false", "{}: canary: must be 'on' or 'off'"),
    ("STORE\ncanary_shares = [0.9]", "{}: canary_shares.0: must be 0.5 or less"),
    ("STORE\ncanary_shares = [0]", "{}: canary_shares.0: must be more than 0"),
    ("STORE\ncanary_shares = [0.2, 0.1]", "{}: canary_shares: each share must be larger than the one before"),
    ("STORE\ncanary_shares = []", '{}: canary_shares: must not be empty; canary = "off" does without'),
    ("STORE\nleast_examples = 0", "{}: least_examples: must be a whole number from 1 to 1,000,000"),
    ("STORE\nwatch_hours = inf", "{}: watch_hours: must be a number from 0 to 8,760"),
    ("STORE\ntrain = '--steps 5'", "{}: train: must be a list"),
    ("STORE\ntrain = ['--base=x']", "{}: train: --base=x is given by the loop; leave it out"),
    ("STORE\ntrain = ['--out', 'x']", "{}: train: --out is given by the loop; leave it out"),
    ("STORE\nmine = ['--pool', 'x']", "{}: mine: --pool is given by the loop; leave it out"),
    ("STORE\ngolden = ['none.jsonl']", "{}: golden: no file none.jsonl"),
    ("store = '.'", "{}: store: . is no store: it holds other things"),
    ("store =", "{} cannot be read: Invalid value"),
    ("\x00", "{} cannot be read: Invalid statement"),
])  # fmt: skip
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        loaded(tmp_path, content)
    assert str(raised.value).startswith(says.format(tmp_path / "loop.toml"))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"loop\.toml cannot be read: No such file or directory$"):
        LoopConfig.load(tmp_path / "loop.toml")
