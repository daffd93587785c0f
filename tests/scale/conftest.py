"""A Ray cluster, and stores in parts, for the tests of a module."""

from collections.abc import Iterator

import pytest
from ray_cluster import Cluster
from sharded_server import Stores


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """For tests that leave the first generation active, named "c", or do not depend on it."""
    return Stores.made(tmp_path_factory.mktemp("shards"))
