"""Take the pictures of the playground in README and docs, with the bundled sample. `make screenshots` runs it.

It needs Chromium on the path, and leaves the demo's store behind as `make demo` does.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
MOST_BYTES = 150_000
WAIT_MS = 60_000  # for an answer on a busy machine


@contextmanager
def demo() -> Iterator[str]:
    """Serve the sample for the block; yields the URL of the page."""
    command = [sys.executable, "-m", "polyrank.service.cli", "demo", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if ready := re.search(r"ready on (http\S+)", line):
                yield f"{ready[1]}/playground"
                return
        sys.exit("the demo did not start")
    finally:
        server.terminate()
        server.wait(60)


def opened(browser: Browser, url: str, scheme: Literal["light", "dark"], width: int, height: int) -> Page:
    """Open the page with the example's replies."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(url)
    page.get_by_role("button", name="Try an example").click()
    page.locator(".results[aria-busy=false] .reply").first.wait_for()
    return page


def take(page: Page, name: str, part: Locator | None = None) -> None:
    """Write a picture of what is seen, or of one part of the page.

    Raises:
        SystemExit: it is too large for the repository.
    """
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # bars grow
    path = FIGURES / f"{name}.png"
    picture = Image.open(BytesIO((part or page).screenshot())).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    if (size := path.stat().st_size) > MOST_BYTES:
        sys.exit(f"{path} has {size} bytes, more than {MOST_BYTES}")


def main() -> None:
    """Take every picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("needs Chromium: apt-get install chromium")
    arguments = ["--disable-lcd-text"]  # letters without coloured edges, so that few colours are enough
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
    with demo() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        light = opened(browser, url, "light", 1280, 800)
        take(light, "playground-light")
        light.get_by_role("button", name="Why rank 1", exact=True).click()
        light.locator(".codes").wait_for()
        take(light, "playground-why", light.locator(".reply").first)
        dark = opened(browser, url, "dark", 1280, 800)
        dark.get_by_role("link", name="Index").click()
        dark.get_by_role("heading", name="Serving").wait_for()
        take(dark, "playground-dark")
        narrow = opened(browser, url, "light", 320, 720)
        narrow.locator(".chips").evaluate("chips => chips.scrollIntoView()")
        take(narrow, "playground-narrow")
        browser.close()


if __name__ == "__main__":
    main()
