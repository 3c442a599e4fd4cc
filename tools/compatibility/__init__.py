"""The tables of docs/compatibility.md: which fields of other systems' APIs are the same here, different or refused."""
