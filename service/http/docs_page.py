"""The page that shows the API's documentation and tries it out: Swagger UI, and the policy that browsers enforce on it.

Swagger UI's files come with the package fastapi-swagger, so the page asks no other host. The policy lets it run these
files and its own lines, and call this server. Nothing else, and no frame around it.
"""

import base64
import hashlib
from importlib.resources import files

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_SCRIPT, _STYLE, _ICON = (f"/docs/{name}" for name in _TYPES)
_A_DAY = {"Cache-Control": "public, max-age=86400"}

page = get_swagger_ui_html(
    openapi_url="/openapi.json",
    title="polyrank",
    swagger_js_url=_SCRIPT,
    swagger_css_url=_STYLE,
    swagger_favicon_url=_ICON,
)
_own_lines = bytes(page.body).partition(b"<script>")[2].partition(b"</script>")[0]
_digest = base64.b64encode(hashlib.sha256(_own_lines).digest()).decode()
page.headers["Content-Security-Policy"] = "; ".join(
    [
        "default-src 'none'",
        f"script-src 'sha256-{_digest}' 'self'",
        "style-src 'unsafe-inline' 'self'",
        "img-src data: 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)


def asset(name: str) -> Response | None:
    """Return a file of Swagger UI; None: there is none of that name."""
    if name not in _TYPES:
        return None
    content = files("fastapi_swagger").joinpath("resources", name).read_bytes()
    return Response(content, media_type=_TYPES[name], headers=_A_DAY)
