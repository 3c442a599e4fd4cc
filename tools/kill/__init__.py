"""Kill a server or parts of a fleet at random moments, and check that nothing is lost."""
