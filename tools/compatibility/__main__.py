"""`python -m tools.compatibility` brings docs/compatibility.md up to date, and tells of fields of the official packages
that it does not have."""

from tools.compatibility.document import DOCUMENT, document
from tools.compatibility.packages import missing_fields

DOCUMENT.write_text(document())
for line in missing_fields():
    print(f"not in the table: {line}")
