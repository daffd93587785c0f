"""What is told of a long pip install."""

from pathlib import Path
from types import ModuleType

import pytest
import scripts


@pytest.fixture
def script() -> ModuleType:
    return scripts.loaded(".ci/install.py")


def test_what_pip_does_is_told(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(script.sysconfig, "get_path", lambda _: str(tmp_path))
    install = script.Install()
    assert install.line() == "pip is set up: 0 s"
    install.follow([])
    assert install.line() == "pip looks for packages: 0 s"
    lines = [
        "Obtaining file:///polyrank\n",
        "Collecting torch==2.13.0 (from -c constraints.txt (line 9))\n",
        "Requirement already satisfied: pip\n",
        "Collecting orjson>=3 (from polyrank==0.1.0)\n",
    ]
    install.follow(lines)
    assert install.line() == "pip looks for orjson>=3 (package 2): 0 s"
    install.follow(["  Downloading torch-2.13.0-cp311.whl (104.1 MB)\n"])
    assert install.line() == "pip downloads torch-2.13.0-cp311.whl (104.1 MB): 0 s"
    install.follow(["Installing collected packages: orjson, torch, polyrank\n"])
    (tmp_path / "orjson-3.11.dist-info").mkdir()
    assert install.line() == "pip installs package 1 of 3: 0 s"
