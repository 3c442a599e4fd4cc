"""Checks that the grammar of a JSON schema leads only to texts that are valid under the schema."""
