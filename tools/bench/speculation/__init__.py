"""What drafts gain and cost, see `__main__`."""
