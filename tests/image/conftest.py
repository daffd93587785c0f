"""The image, built once, and what the tests measured, shown at the end."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import image_build
import pytest
from container import Image, Network
from image_build import Workshop

MEASURED: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    if refusal := image_build.refusal():
        pytest.exit(refusal, returncode=1)


@pytest.fixture(scope="session")
def measured() -> list[str]:
    """Lines to show when all tests have run."""
    return MEASURED


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("measured")
    for line in MEASURED:
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def workshop(_tools: None) -> Iterator[Workshop]:
    # Not in pytest's directory, which is kept: this one takes gigabytes.
    with tempfile.TemporaryDirectory(prefix="polyrank-image-") as folder:
        workshop = Workshop(Path(folder))
        yield workshop
        workshop.close()


@pytest.fixture(scope="session")
def image(workshop: Workshop, measured: list[str]) -> Image:
    """The target runtime-cpu, ready to be run."""
    for what, step in (("the base", workshop.make_base), ("the image", lambda: workshop.build("runtime-cpu"))):
        begun = time.monotonic()
        step()
        measured.append(f"{what} was made in {time.monotonic() - begun:.0f} s")
    return workshop.image()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()
