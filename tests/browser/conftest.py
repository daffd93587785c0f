"""A real browser before real servers with small models. Whatever a page should not do fails the test that opened it."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browsing import Opens, Watch, settings_of
from fakes import EVIDENCE
from playwright.sync_api import Browser, Page, expect, sync_playwright
from served import Served, serve
from service_fakes import pool
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.model.config import CalibrationConfig
from polyrank.service.app import create_app

PATIENCE_MS = 20_000  # a busy machine


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        missing = "needs Chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    assert watching.found() == []


@pytest.fixture
def opens(browser: Browser, watch: Watch) -> Iterator[Opens]:
    with ExitStack() as contexts:

        def open_page(url: str, view: str = "", **options: Any) -> Page:
            context = contexts.enter_context(browser.new_context(**options))
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            watch.follow(page, url)
            page.goto(f"{url}/playground{view and '#' + view}")
            return page

        yield open_page


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints `poly`, whose words count and which is calibrated, `bi` and `cross`."""
    parent = tmp_path_factory.mktemp("checkpoints")
    of_codes = {"architecture": "poly", "n_codes": 12, "reduction": "mean", "evidence": EVIDENCE}
    line = CalibrationConfig(prior=0.1, slope=0.2, intercept=-1.0)
    write_checkpoint(parent, "poly", 0, normalize=True, score_scale=5.0, calibration=line, **of_codes)
    write_checkpoint(parent, "bi", 1, architecture="bi", normalize=True, shared_encoder=True)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return parent


@pytest.fixture(scope="session")
def store(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that tests only read."""
    root = tmp_path_factory.mktemp("store")
    build(polyrank.load(checkpoints / "poly"), pool(60), root)
    return root


@pytest.fixture(scope="session")
def server(store: Path, checkpoints: Path) -> Iterator[Served]:
    """A server that tests only read from."""
    with serve(create_app(settings_of(store, checkpoints))) as served:
        yield served


@pytest.fixture
def own_store(checkpoints: Path, tmp_path: Path) -> Path:
    """A store of the test's own with two generations, of which the second is active."""
    build(polyrank.load(checkpoints / "bi"), pool(20), tmp_path / "store")
    build(polyrank.load(checkpoints / "poly"), pool(60), tmp_path / "store", BuildOptions(activate=True))
    return tmp_path / "store"


@pytest.fixture
def own_server(own_store: Path, checkpoints: Path, tmp_path: Path, warm_python, monkeypatch) -> Iterator[Served]:
    """A server of the test's own; `tmp_path` is its pool root, and builders are forked."""
    monkeypatch.setattr(sys, "executable", warm_python.executable)
    with serve(create_app(settings_of(own_store, checkpoints, pool_root=tmp_path))) as served:
        yield served
