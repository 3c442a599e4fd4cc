-- A script that removes a body from the index. KEYS: used, sizes, total, the body's key.
remove(KEYS[4])
