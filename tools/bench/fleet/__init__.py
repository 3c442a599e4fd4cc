"""Measures a fleet on real Ray, with runners whose steps take a modelled time: two cores carry many replicas."""
