"""`python -m tools.http_api` brings docs/http-api.md up to date."""

from tools.http_api.document import DOCUMENT, renew

DOCUMENT.write_text(renew(DOCUMENT.read_text()))
