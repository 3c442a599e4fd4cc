"""A soak test: send mixed traffic to a server for a chosen time, to see if its memory grows, it slows down, or fails.
"""
