"""A soak test: send mixed traffic to a server for a chosen time, and see if it grows, slows down or fails."""
