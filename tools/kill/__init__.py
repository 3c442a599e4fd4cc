"""Kill a server or parts of a fleet at random moments, and check all that was acknowledged."""
