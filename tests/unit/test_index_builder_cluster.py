"""What is decided before Ray is imported; tests/scale connects to real clusters."""

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrank.index_builder.errors import ClusterUnavailable
from polyrank.index_builder.scale import cluster
from polyrank.index_builder.scale.cluster import Address, connected, require_token, why_unusable
from polyrank.model.errors import InvalidInput


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    yield
    for name in [name for name in os.environ if name.startswith("RAY_") and name not in before]:
        del os.environ[name]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it is an ImportError


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert why_unusable("auto") == "--cluster needs the package ray: pip install 'polyrank[scale]'"
    with pytest.raises(InvalidInput, match="needs the package ray"), connected("auto"):
        pass


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:6379", "head.example:6379", "[::1]:6379"])
def test_an_address_of_a_head_or_auto(address: str) -> None:
    assert why_unusable(address) is None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_ray_client_is_refused(address: str) -> None:
    assert why_unusable(address) == (
        f"--cluster {address}: Ray Client is not supported; give HOST:PORT of the cluster's head, or auto"
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "head:port", "head:99999", "::1", "local", "a/b:1"])
def test_anything_else_is_refused(address: str) -> None:
    assert why_unusable(address) == f"--cluster {address} is neither HOST:PORT of a cluster's head nor auto"


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.1", False), ("h", False)]
)
def test_only_this_machine_reaches_the_loopback(host: str, loopback: bool) -> None:
    assert Address(host, 6379).is_loopback is loopback


def test_an_address_is_written_as_it_is_given() -> None:
    assert [str(Address(host, 1)) for host in ("head", "::1")] == ["head:1", "[::1]:1"]


@pytest.mark.usefixtures("installed")
def test_nothing_that_answers() -> None:
    port = free_port()
    message = f"the Ray cluster at 127.0.0.1:{port} cannot be used: nothing answers \\(Connection refused\\)"
    with pytest.raises(ClusterUnavailable, match=message), connected(f"127.0.0.1:{port}"):
        pass


@pytest.mark.usefixtures("installed")
def test_what_ray_reads_is_set_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1000")
    with pytest.raises(ClusterUnavailable), connected(f"127.0.0.1:{free_port()}"):
        pass
    assert {name: value for name, value in os.environ.items() if name.startswith("RAY_") and name != "RAY_TMPDIR"} == {
        "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_max_direct_call_object_size": "1000", "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    }  # fmt: skip


@pytest.mark.usefixtures("installed")
def test_a_cluster_of_other_machines_is_joined_by_their_addresses() -> None:
    with pytest.raises(ClusterUnavailable), connected(f"nowhere.invalid:{free_port()}"):
        pass
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ


@pytest.mark.usefixtures("installed")
def test_tokens_cannot_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ClusterUnavailable, match="RAY_AUTH_MODE=disabled allows anybody"), connected("127.0.0.1:6379"):
        pass


@pytest.mark.usefixtures("installed")
def test_auto_is_the_cluster_of_the_environment_or_of_this_machine(monkeypatch, tmp_path: Path) -> None:
    assert_refused("auto", "this machine has no node of a cluster; start one, or give HOST:PORT")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{free_port()}\n")
    assert_refused("127.0.0.1:", "nothing answers")
    monkeypatch.setenv("RAY_ADDRESS", f"localhost:{free_port()}")
    assert_refused("localhost:", "nothing answers")
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert_refused("ray://head:10001", "RAY_ADDRESS must be HOST:PORT of its head")


@pytest.mark.usefixtures("installed")
def test_a_head_on_this_machine_is_called_as_its_nodes_call_it(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"nowhere.invalid:{port}")
    with pytest.raises(ClusterUnavailable, match=r"cluster at nowhere\.invalid:"), connected(f"127.0.0.1:{port}"):
        pass
    with pytest.raises(ClusterUnavailable, match=r"cluster at 127\.0\.0\.1:"), connected(f"127.0.0.1:{free_port()}"):
        pass


def assert_refused(address: str, reason: str) -> None:
    with pytest.raises(ClusterUnavailable) as refused, connected(cluster.AUTO):
        pass
    assert str(refused.value).startswith(f"the Ray cluster at {address}")
    assert reason in str(refused.value)


def test_a_process_of_a_node_without_tokens_refuses_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterUnavailable, match="start every node with RAY_AUTH_MODE=token"):
        require_token()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_token()
