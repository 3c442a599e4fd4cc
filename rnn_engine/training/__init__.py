"""Tune an initial state: training data from files, the tuner with its schedule and checkpoints, and its reports."""
