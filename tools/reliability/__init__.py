"""What is shown of the server's reliability: two cases with 200 clients, and the table of all tools' results."""
