"""States of sequences, kept so that no token is run twice.

cache/     StateCache, from token prefixes to checkpoints in tiers; single flight; where checkpoints are made
named/     StateStore, states under names with leases, in memory and in a folder
files/     the forms in which users have states
frozen.py  what a sequence may start from
"""
