"""The versions of RWKV: a package for each, and the table that says which there are."""
