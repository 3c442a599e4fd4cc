"""The bodies that clients send (pydantic) and receive (TypedDicts), field by field."""
