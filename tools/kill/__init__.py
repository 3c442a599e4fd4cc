"""Kill a server, or parts of a fleet, at random moments, and check that no acknowledged change of a state is lost."""
