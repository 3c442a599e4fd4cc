"""Takes pictures of the web page, with answers of the demo model."""
