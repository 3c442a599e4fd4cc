"""Kill a server at random moments during writes, and look whether all that it acknowledged is there and right."""
