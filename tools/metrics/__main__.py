"""`python -m tools.metrics` brings docs/metrics.md up to date."""

from tools.metrics.document import DOCUMENT, renew

DOCUMENT.write_text(renew(DOCUMENT.read_text()))
