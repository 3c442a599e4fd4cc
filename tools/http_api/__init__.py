"""Write the reference part of docs/http-api.md from the server's route table and schemas."""
