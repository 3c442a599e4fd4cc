"""Kill a server at random moments during writes, and check that all acknowledged writes are there and right."""
