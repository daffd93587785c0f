"""The files in which serving processes count."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from polyrank.service.process.supervisor import KINDS, MetricFiles, metric_files


@pytest.fixture
def files() -> Iterator[MetricFiles]:
    with metric_files(2) as made:
        yield made


def show(files: MetricFiles, kind: str, slot: int, value: float, label: str = "") -> None:
    """Set a value as a process does."""
    values = MmapedDict(str(files.directory / f"{kind}_{slot}.db"))
    values.write_value(mmap_key("m", "m", ["at"], [label], "a text"), value, 0.0)
    values.close()


def shown(files: MetricFiles) -> list[float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(files.directory))
    return [sample.value for metric in registry.collect() for sample in metric.samples]


def test_there_is_nothing_to_read_before_anything_is_counted(files: MetricFiles) -> None:
    assert len(files.descriptors) == 2 * len(KINDS)
    assert shown(files) == []


def test_however_much_is_counted_takes_no_room_on_the_disk(files: MetricFiles) -> None:
    for number in range(20):
        show(files, "counter", 0, 1.0, f"{number:09999}")
    assert len(shown(files)) == 20
    assert all(path.is_symlink() for path in files.directory.iterdir())


def test_a_directory_that_was_cleaned_away_comes_back_with_what_was_counted(files: MetricFiles) -> None:
    show(files, "counter", 0, 3.0)
    show(files, "counter", 1, 4.0)
    shutil.rmtree(files.directory)
    files.link()
    assert shown(files) == [7.0]
    (files.directory / "counter_1.db").unlink()
    files.link()
    assert shown(files) == [7.0]


def test_what_a_process_showed_of_itself_goes_with_it(files: MetricFiles) -> None:
    for slot, value in enumerate((3.0, 4.0)):
        show(files, "gauge_livesum", slot, value)
    assert shown(files) == [7.0]
    files.forget_gauges(0)
    assert shown(files) == [4.0]
    show(files, "gauge_livesum", 0, 1.0, "another")
    assert sorted(shown(files)) == [1.0, 4.0]


def test_a_directory_that_is_not_its_own_is_not_used(files: MetricFiles, tmp_path: Path, monkeypatch) -> None:
    shutil.rmtree(files.directory)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    files.directory.symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="another user"):
        files.link()
    files.directory.unlink()
    files.directory.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: files.directory.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        files.link()
    assert [*elsewhere.iterdir(), *files.directory.iterdir()] == []
    monkeypatch.undo()
    files.link()
    assert shown(files) == []


def test_what_stands_in_the_place_of_a_link_is_replaced(files: MetricFiles, tmp_path: Path) -> None:
    show(files, "counter", 0, 3.0)
    for name in ("counter_0.db", "counter_1.db"):
        (files.directory / name).unlink()
    (files.directory / "counter_0.db").write_bytes(b"")
    (files.directory / "counter_1.db").symlink_to(tmp_path / "of another")
    files.link()
    show(files, "counter", 1, 4.0)
    assert shown(files) == [7.0]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with metric_files(1) as made:
        assert made.directory.parent == tmp_path
    assert (list(tmp_path.iterdir()), len(os.listdir("/proc/self/fd"))) == ([], before)
