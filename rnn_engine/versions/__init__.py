"""The supported versions of RWKV: a package for each, and the table that lists them."""
