"""Measurements of a fleet on real Ray.

Steps take a modelled time without computing, so two cores can run many replicas.
"""
