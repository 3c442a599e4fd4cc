"""Who may use the server, and what they may see: machines, host names, web pages, API keys."""
