-- A table of things that clients leave here, which `owners.py` reads and writes. THINGS is its name.

CREATE TABLE THINGS (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order of creation
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    label TEXT NOT NULL,
    status TEXT NOT NULL,
    expires REAL,
    num_bytes INTEGER NOT NULL,
    record TEXT NOT NULL,  -- JSON
    digest INTEGER NOT NULL  -- of owner and record
);
CREATE INDEX THINGS_by_owner ON THINGS (owner, number);
CREATE INDEX THINGS_by_status ON THINGS (status, number);
CREATE INDEX THINGS_by_expiry ON THINGS (expires) WHERE expires IS NOT NULL;
