"""Pictures of the web page, with what the demo model says."""
