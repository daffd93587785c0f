"""`GET /playground` and the files below it: open, without data; what the page asks for needs a key as ever.

`static/` holds the files as they are sent; nothing is built. A policy, which browsers enforce, lets the page run these
files and its import map, and call this server. Nothing else, no frame around it, and no text that becomes markup.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polyrank.service.http.plumbing.access import OPEN

PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent; `etag` changes with its content."""

    content: bytes
    media_type: str
    etag: str


def read_all() -> dict[str, File]:
    """Read the page and its files, by their path below `static/`."""
    return dict(_below(files(__package__).joinpath("static"), ""))


def policy(page: bytes) -> str:
    """Return the Content-Security-Policy for the page, which may have one import map in its markup."""
    [import_map] = _IMPORT_MAP.findall(page)
    digest = base64.b64encode(hashlib.sha256(import_map).digest()).decode()
    rules = (
        "default-src 'none'",
        f"script-src 'self' 'sha256-{digest}'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return "; ".join(rules)


def _below(folder: Traversable, path: str) -> list[tuple[str, File]]:
    entries: list[tuple[str, File]] = []
    for each in folder.iterdir():
        if each.is_dir():
            entries += _below(each, f"{path}{each.name}/")
        elif (ending := each.name[each.name.rfind(".") :]) in _TYPES:
            content = each.read_bytes()
            # Weak: an answer may be compressed on its way.
            etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
            entries.append((path + each.name, File(content, _TYPES[ending], etag)))
    return entries


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
    if name not in _FILES:
        raise HTTPException(404)
    entry = _FILES[name]
    headers = {**_HEADERS, "ETag": entry.etag}
    etags = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]
    if entry.etag in etags or "*" in etags:
        return Response(status_code=304, headers=headers)
    return Response(entry.content, media_type=entry.media_type, headers=headers)
