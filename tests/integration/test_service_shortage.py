"""Where the system lacks something for the moment: nothing is refused for ever, and callers are told to come back."""

import os
from pathlib import Path

import pytest
from no_descriptors import no_descriptors
from served import serve
from service_fakes import build_store, pool, words_app
from waiting import until

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service import resources
from polyrank.service.changes import updating


def test_a_switch_without_descriptors_is_made_up_for(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(updating, "SWITCHES_WITHIN_SECONDS", 0.1)
    first, second = (build_store(tmp_path, pool(20, prefix)) for prefix in "ab")
    current, prepared = tmp_path / "CURRENT", tmp_path / "prepared"
    prepared.write_bytes(current.read_bytes())
    GenerationStore(tmp_path).activate(first)
    with serve(words_app(tmp_path)) as server:
        assert server.rank(context="w1").json()["generation"] == first
        live, update = server.app.state.resources.live, [{"id": "new", "text": "w1"}]
        with no_descriptors(but=1):  # enough to read CURRENT, but not to open a generation
            os.replace(prepared, current)  # as another process switches
            until(lambda: bool(live.refused))
            assert server.rank(context="w1").json()["generation"] == first

            def refused() -> str:
                answer = server.client.put("/index/candidates", json=update)
                assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
                return str(answer.json()["detail"])

            # not at once: who looks at CURRENT may hold the one descriptor just then
            until(lambda: "send the update again" in refused())
        until(lambda: live.current is not None and live.current.generation.id == second)
        until(lambda: not live.refused)  # forgotten a moment after the switch
        assert server.client.put("/index/candidates", json=update).status_code == 200
        assert server.rank(context="w1").json()["generation"] == second
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("call", [("GET", "/index"), ("POST", "/index/activate"), ("POST", "/index/rollback")])
def test_a_call_without_descriptors_is_told_to_come_back(tmp_path: Path, call: tuple[str, str]) -> None:
    first, _ = (build_store(tmp_path, pool(20, prefix)) for prefix in "ab")
    body = {"generation": first} if call[1].endswith("activate") else None
    with serve(words_app(tmp_path)) as server:
        assert server.rank(context="w1").status_code == 200
        with no_descriptors():
            answer = server.client.request(*call, json=body)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:polyrank:problem:shortage")
        assert "Too many open files" in answer.json()["detail"]
        assert answer.headers["Retry-After"] == "5"
        assert server.client.request(*call, json=body).status_code == 200
