"""A client that calls an app in the test's process, without a socket."""

import starlette.testclient
from fastapi import FastAPI


class TestClient(starlette.testclient.TestClient):
    """Calls the app as localhost, a host as which every server may be called."""

    __test__ = False  # not a class of tests

    def __init__(self, app: FastAPI, raise_server_exceptions: bool = True) -> None:
        super().__init__(app, "http://localhost", raise_server_exceptions)
