"""Take pictures of the web page for the documentation, with answers of the demo model."""
