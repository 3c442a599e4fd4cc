"""Send mixed traffic to one server for a chosen time, to see if its memory grows, it slows down, or it fails."""
