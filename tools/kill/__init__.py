"""Kill a server, parts of a fleet or the tuning of a state at random moments, and check that nothing is lost."""
