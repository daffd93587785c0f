"""A Ray cluster for the tests of a module."""

from collections.abc import Iterator

import pytest
from ray_cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()
