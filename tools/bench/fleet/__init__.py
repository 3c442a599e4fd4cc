"""Measurements of a fleet on real Ray. Steps take a modelled time, so that two cores can carry many replicas."""
