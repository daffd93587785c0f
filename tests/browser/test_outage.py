"""A server that is killed and started again: the page says so, loses nothing, and goes on by itself."""

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import Opens, Watch, ask, say, shown
from playwright.sync_api import expect
from served import Served
from server_process import ServerProcess
from warm_python import WarmPython


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def start(warm_python: WarmPython, store: Path) -> Iterator[Callable[[int], ServerProcess]]:
    started: list[ServerProcess] = []

    def begin(port: int) -> ServerProcess:
        started.append(ServerProcess(warm_python, store=store, port=port))
        started[-1].ready()
        return started[-1]

    yield begin
    for server in started:
        server.process.kill()
        server.end()


def test_a_killed_server_comes_back_and_so_does_the_page(
    start: Callable[[int], ServerProcess], opens: Opens, watch: Watch
) -> None:
    watch.tolerated.append("net::ERR_")
    port = free_port()
    server = start(port)
    page = opens(f"http://127.0.0.1:{port}")
    ask(page, "w1 w2")
    before = shown(page)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Persona").fill("w7 w8")
    page.get_by_label("Filter").fill('{"lang": "en"}')

    server.process.send_signal(signal.SIGKILL)
    server.end()
    say(page, "w3")
    page.get_by_label("What is said").fill("not yet sent")
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    expect(page.get_by_text("Server: no answer")).to_be_visible()
    assert [each["id"] for each in before] == page.locator(".about code").all_inner_texts(), "the last replies stay"
    asked = len(watch.asked)
    page.wait_for_timeout(3000)
    assert 1 <= len(watch.asked) - asked <= 4, "it asks again, more and more seldom"

    start(port)
    expect(page.get_by_text("Server: ready")).to_be_visible()
    expect(page.get_by_text("The server does not answer.")).to_have_count(0)
    shown(page)
    [*_, (_, last)] = [(method, url) for method, url in watch.asked if method == "POST"]
    assert last.endswith("/rank"), "what nobody answered was asked again"
    assert page.locator(".turn p.text").all_inner_texts() == ["w1 w2", "w3"]
    expect(page.get_by_label("What is said")).to_have_value("not yet sent")
    expect(page.get_by_label("Persona")).to_have_value("w7 w8")
    expect(page.get_by_label("Filter")).to_have_value('{"lang": "en"}')


def test_a_server_that_is_not_ready_yet(server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 503")
    url = server.url
    server.app.state.draining = True
    try:
        page = opens(url)
        expect(page.get_by_text("The server is not ready yet.")).to_be_visible()
        page.get_by_label("What is said").fill("w1")
    finally:
        server.app.state.draining = False
    expect(page.get_by_text("The server is not ready yet.")).to_have_count(0)
    expect(page.get_by_label("What is said")).to_have_value("w1")
