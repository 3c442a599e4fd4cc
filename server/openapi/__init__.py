"""The OpenAPI document, made from the routes and schemas that the server runs, and a page to browse it."""
