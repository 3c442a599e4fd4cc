"""The OpenAPI document, made from the server's routes and schemas, and a page to browse it."""
