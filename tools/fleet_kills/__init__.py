"""Disturb a fleet by killing replicas or the shared store or slowing the network, and check requests and states."""
