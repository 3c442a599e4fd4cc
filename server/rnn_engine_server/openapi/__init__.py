"""The OpenAPI document, generated from the routes and schemas, and a page to browse it."""
