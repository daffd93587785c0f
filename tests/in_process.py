"""A client that calls an app in the test's process, without a socket."""

import starlette.testclient
from fastapi import FastAPI


class TestClient(starlette.testclient.TestClient):
    """Calls the app as localhost, a host as which every server may be called."""

    __test__ = False  # not a class of tests

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app, base_url="http://localhost")
