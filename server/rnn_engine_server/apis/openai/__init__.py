"""OpenAI's API: chats, completions, responses, conversations, embeddings and the list of models."""
