"""Ollama's API: chats, generations, embeddings and models."""
