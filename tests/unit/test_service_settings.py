"""Flags over environment over file; anything unknown or wrong is one line that names it."""

import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr

from polyrank.service import settings as module
from polyrank.service.errors import SettingsError
from polyrank.service.settings import Settings, bounds_of


def test_reading_settings_waits_for_no_library_of_the_server() -> None:
    late = ["fastapi", "numpy", "prometheus_client", "torch"]
    script = f"import sys, polyrank.service.settings; print([each for each in {late} if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"[]\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "polyrank.toml"
    monkeypatch.setenv("POLYRANK_CONFIG", str(path))
    return path


def test_flags_win_over_environment_over_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('store = "file"\nport = 1\nmax_candidates = 7\nhost = "h"\n')
    monkeypatch.setenv("POLYRANK_PORT", "2")
    monkeypatch.setenv("POLYRANK_MAX_CANDIDATES", "8")
    settings = Settings.load({"port": 3, "host": None})
    assert (settings.store, settings.port, settings.max_candidates, settings.host) == ({"": Path("file")}, 3, 8, "h")


@pytest.mark.parametrize(("given", "stores"), [
    ("/a", {"": "/a"}), ("support=/a,shop=/b", {"support": "/a", "shop": "/b"}),
    ("a=/x,y,b=/z", {"a": "/x,y", "b": "/z"}), ("./a=b", {"": "a=b"}),
    ("/a/b=c,d=e", {"": "/a/b=c,d=e"}), (" a=/x , b=/y,z", {"a": "/x", "b": "/y,z"}), ("", {}),
])  # fmt: skip
def test_a_variable_may_name_several_stores(given: str, stores: dict[str, str], monkeypatch) -> None:
    monkeypatch.setenv("POLYRANK_STORE", given)
    assert Settings.load({"reranker": "r"}).store == {name: Path(path) for name, path in stores.items()}


def test_flags_and_the_file_name_several_stores_too(config: Path) -> None:
    config.write_text('[store]\nshop = "/b"\n"" = "/a"\n')
    assert Settings.load({}).store == {"shop": Path("/b"), "": Path("/a")}
    assert Settings.load({"store": ["/c", "support=/d"]}).store == {"": Path("/c"), "support": Path("/d")}


@pytest.mark.parametrize(("given", "says"), [
    (["/a", "/b"], "store: two directories have no name: write NAME=DIR"),
    (["a=/x", "a=/y"], "store: two directories are given for the pool a"),
    (["a=/x", "b=/x/../x"], "store: the pools a and b are both in /x"),
    (["a="], "store: a= lacks the directory"),
    ({"..": "/a"}, "store: '..' names no pool: up to 64"),
    ({"a/b": "/a"}, "names no pool"),
    ({"a" * 65: "/a"}, "names no pool"),
    (["é=/a"], "store: 'é' names no pool: up to 64"),
    (["a=/x,my shop=/b"], "store: 'my shop' names no pool"),
    ({"a": 3}, "store.a: must be a string"),
])  # fmt: skip
def test_stores_that_cannot_be_told_apart_are_refused(given: object, says: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(says)):
        Settings.load({"store": given})


def test_the_constructor_sees_its_arguments_alone(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("port = 1\n")
    monkeypatch.setenv("POLYRANK_PORT", "2")
    assert Settings(store=Path("s")).port == 8000


@pytest.mark.parametrize(("host", "is_open"), [
    *((host, False) for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1")),
    *((host, True) for host in ("0.0.0.0", "::", "10.0.0.1", "rank.shop.example", "127.0.0.1.shop.example", "")),
])  # fmt: skip
def test_a_server_is_open_where_others_reach_it_and_there_are_no_keys(host: str, is_open: bool) -> None:
    assert Settings(store=Path("s"), host=host).is_open is is_open
    assert not Settings(store=Path("s"), host=host, keys_file=Path("keys")).is_open


@pytest.mark.parametrize(("overrides", "says"), [
    ({}, "store"),
    ({"store": "s", "host": "9" * 400}, "host: must be an address or the name of a machine"),
    ({"store": "s", "host": "a..b"}, "host: must be an address or the name of a machine"),
    ({"store": "s", "vectors": "disk"}, "vectors"),
    ({"store": "s", "vectors": "redis"}, "--redis URL"),
    ({"store": "s", "redis_url": "foo://h"}, "redis_url: the Redis URL must begin with redis://"),
    ({"store": "s", "redis_url": "localhost:6379"}, "redis_url"),
    ({"store": "s", "redis_url": "redis://h/0?secret=short"}, "redis_url: the secret in the Redis URL must have 16"),
    ({"store": "s", "metrics_access": "admin"}, "metrics_access = admin needs keys_file"),
    ({"reranker": "r", "feedback": "ids"}, "feedback: it is recorded in the store; name one"),
    ({"store": "s", "feedback": False}, "feedback"),
    ({"store": "s", "feedback": "ids", "feedback_redact": "a:b"}, "feedback_redact needs feedback = texts"),
    ({"store": "s", "feedback": "texts", "feedback_redact": "a.b"}, "feedback_redact"),
    ({"store": "s", "feedback_days": 0}, "feedback_days: must be"),
    ({"store": "s", "keys_file": "nowhere/keys"}, "keys_file: nowhere/keys cannot be read"),
    ({"store": "s", "cors_origins": "https://a.example/"}, "is no origin"),
    ({"store": "s", "cors_origins": "a.example"}, "is no origin"),
    ({"store": "s", "cors_origins": "null"}, "is no origin"),
    ({"store": "s", "cors_origins": ["https://a.example:x"]}, "is no origin"),
    ({"store": "s", "cors_origins": 5}, "cors_origins"),
    ({"store": "s", "colour": "red"}, "colour"),
])  # fmt: skip
def test_a_bad_value_is_one_line_that_names_the_setting(overrides: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        Settings.load(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("overrides", "says"), [
    ({"store": "s", "cluster": "ray://h:1"}, "--cluster"),
    ({"store": "s", "shard_replicas": 2}, "shard_replicas needs cluster"),
    ({"store": "s", "cluster": "auto", "workers": 2}, "leave workers at 1"),
    ({"store": "s", "cluster": "auto", "vectors": "redis", "redis_url": "redis://h"}, "leave vectors = redis out"),
    ({"reranker": "r", "cluster": "auto"}, "name the store"),
    ({"store": "shop=s", "cluster": "auto"}, "shards hold one pool, without a name"),
])  # fmt: skip
def test_what_does_not_go_with_a_cluster_is_named(monkeypatch, overrides: dict[str, object], says: str) -> None:
    if overrides.get("cluster") == "auto":  # whether Ray is installed here or not
        monkeypatch.setattr(module, "why_unusable", lambda _: None)
    with pytest.raises(SettingsError, match=says):
        Settings.load(overrides)


@pytest.mark.parametrize("name", ["cluster", "keys_file"])
def test_an_empty_variable_means_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"POLYRANK_{name.upper()}", "")
    assert getattr(Settings.load({"store": "s"}), name) is None


NUMBERS = [
    name
    for name, field in Settings.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
]
NOT_A_NUMBER = ["nan", "-nan", "inf", "-inf", "1e400", "-1e400", "9" * 5000, "", "many"]


def with_number(name: str, value: object) -> dict[str, object]:
    needed = {"cluster": "auto"} if name in ("shard_replicas", "hedge_ms", "min_searched") else {}
    return {"store": "s", "reranker": "r", **needed, name: value}


def test_every_setting_is_bounded_or_no_number() -> None:
    others = {name: field.annotation for name, field in Settings.model_fields.items() if name not in NUMBERS}
    known = (str, bool, SecretStr, str | None, Path | None, SecretStr | None, tuple[str, ...], dict[str, Path])
    assert [name for name, kind in others.items() if kind not in known and "Literal[" not in str(kind)] == []
    assert [name for name in NUMBERS if bounds_of(name) is None] == []


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_its_bounds_is_one_line_that_names_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_unusable", lambda _: None)
    bounds = bounds_of(name)
    step = 1 if bounds.kind is int else 1e-6 * bounds.most
    for wrong in (*NOT_A_NUMBER, bounds.least - step, bounds.most + step, 10**400, -(10**400), math.nan, math.inf):
        with pytest.raises(SettingsError) as told:
            Settings.load(with_number(name, wrong))
        assert str(told.value) == f"{name}: must be {bounds}"
    for right in (bounds.least, bounds.most):
        assert getattr(Settings.load(with_number(name, right)), name) == right


@pytest.mark.parametrize("device", ["cuda:1x", "xauto", "cuda:99999", "cuda:-1", "CPU", "auto ", "cuda:1\n"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(SettingsError, match=r"^device: must be auto, cpu, cuda, or cuda: and the number of a GPU"):
        Settings.load({"store": "s", "device": device})


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_PROT", "1")
    with pytest.raises(SettingsError, match="POLYRANK_PROT"):
        Settings.load({"store": "s"})


@pytest.mark.parametrize(
    ("content", "says"), [("prot = 1\n", "prot"), ("port = \n", "polyrank.toml"), ("port = true\n[x]\ny=1", "x")]
)
def test_an_unknown_key_or_a_broken_file_is_named(config: Path, content: str, says: str) -> None:
    config.write_text(content)
    with pytest.raises(SettingsError, match=says):
        Settings.load({"store": "s"})


def test_the_key_of_a_client_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_API_KEY", "secret")
    assert "secret" not in str(Settings.load({"store": "s"}).model_dump())


def test_origins_are_a_list_or_separated_by_commas(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("https://a.example", "http://localhost:3000")
    config.write_text(f'store = "s"\ncors_origins = {list(both)}\n')
    assert Settings.load({}).cors_origins == both
    monkeypatch.setenv("POLYRANK_CORS_ORIGINS", "https://a.example, http://localhost:3000,")
    assert Settings.load({}).cors_origins == both
    monkeypatch.setenv("POLYRANK_CORS_ORIGINS", "")
    assert Settings.load({}).cors_origins == ()
    assert Settings.load({"cors_origins": "*"}).cors_origins == ("*",)


def test_a_missing_file_is_named(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"polyrank\.toml"):
        Settings.load({"store": "s"})


def test_a_password_is_neither_shown_nor_lost() -> None:
    settings = Settings(store=Path("s"), redis_url="redis://:secret@h/0")
    assert "secret" not in repr(settings) + str(settings.model_dump(mode="json"))
    assert settings.redis() == "redis://:secret@h/0"


def test_a_bad_value_is_not_echoed() -> None:
    for bad in (["secret"], "foo://:secret@h"):
        with pytest.raises(SettingsError) as caught:
            Settings.load({"store": "s", "redis_url": bad})
        assert "secret" not in str(caught.value)


def test_tracing_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.load({"store": "s", "tracing": True}).tracing
    monkeypatch.setattr(
        "polyrank.service.settings.find_spec", lambda name: None if name == "opentelemetry.sdk" else find_spec(name)
    )
    with pytest.raises(SettingsError, match=r"tracing: install its packages: pip install 'polyrank\[otel\]'"):
        Settings.load({"store": "s", "tracing": True})
    assert not Settings.load({"store": "s"}).tracing
