"""Access control: which machines, host names, web pages and API keys may use the server, and what each may see."""
