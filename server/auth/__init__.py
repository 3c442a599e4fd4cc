"""Who may come in, and what they may see: machines, host names, web pages, API keys."""
