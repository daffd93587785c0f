"""`GET /playground` and the files below it: open, without data; what the page asks for needs a key as ever."""

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polyrank.service.http.playground.files import PAGE, policy, read_all
from polyrank.service.http.plumbing.guards import OPEN

PATH = "/playground"

_FILES = read_all()  # some 100 KB with the licences
_HEADERS = {
    "Content-Security-Policy": policy(_FILES[PAGE].content),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # ask each time: files of two versions must not meet
}

router = APIRouter(include_in_schema=False, dependencies=[OPEN])


@router.get(PATH)
async def page(request: Request) -> Response:
    """Show the page."""
    return _answer(request, PAGE)


@router.get(f"{PATH}/{{name:path}}")
async def file(request: Request, name: str) -> Response:
    """Return a file of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    """Return a file, or 304 where the caller has it."""
    if name not in _FILES:
        raise HTTPException(404)
    found = _FILES[name]
    headers = {**_HEADERS, "ETag": found.etag}
    known = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]
    if found.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
