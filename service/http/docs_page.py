"""The page that shows the API's documentation and tries it out: Swagger UI, and the policy that browsers enforce on it.

The policy lets the page run Swagger UI and its own lines, and call this server. Nothing else, and no frame around it.
"""

import base64
import hashlib

from fastapi.openapi.docs import get_swagger_ui_html

SWAGGER_UI = "https://cdn.jsdelivr.net"
ICON = "https://fastapi.tiangolo.com"

page = get_swagger_ui_html(openapi_url="/openapi.json", title="polyrank")
_own_lines = bytes(page.body).partition(b"<script>")[2].partition(b"</script>")[0]
_digest = base64.b64encode(hashlib.sha256(_own_lines).digest()).decode()
page.headers["Content-Security-Policy"] = "; ".join(
    [
        "default-src 'none'",
        f"script-src 'sha256-{_digest}' {SWAGGER_UI}",
        f"style-src 'unsafe-inline' {SWAGGER_UI}",
        f"img-src data: {ICON}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
