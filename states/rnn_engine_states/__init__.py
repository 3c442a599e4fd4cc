"""Store, cache and exchange recurrent states, so that no token is run twice.

cache/     StateCache: maps token prefixes to checkpoints, which are stored in tiers.
named/     StateStore: states under names with leases, in memory and in a folder.
shared/    The same two in a Valkey or Redis server that several servers share.
files/     The file formats in which states are read and written.
frozen.py  FrozenState: a state from which sequences can start.
tokens.py  Token sequences packed as bytes.
"""
