-- The first format of the database in a folder of jobs: files, batches and tuning jobs. `owners.py` reads and writes the
-- tables of things, which have the same columns.

CREATE TABLE files (
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
CREATE INDEX files_by_owner ON files (owner, number);
CREATE INDEX files_by_status ON files (status, number);
CREATE INDEX files_by_expiry ON files (expires) WHERE expires IS NOT NULL;

-- The files that unfinished jobs need.
CREATE TABLE held_files (file TEXT NOT NULL, job TEXT NOT NULL, PRIMARY KEY (file, job)) WITHOUT ROWID;
CREATE INDEX held_files_by_job ON held_files (job);

CREATE TABLE batches (
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
CREATE INDEX batches_by_owner ON batches (owner, number);
CREATE INDEX batches_by_status ON batches (status, number);
CREATE INDEX batches_by_expiry ON batches (expires) WHERE expires IS NOT NULL;

CREATE TABLE tunings (
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
CREATE INDEX tunings_by_owner ON tunings (owner, number);
CREATE INDEX tunings_by_status ON tunings (status, number);
CREATE INDEX tunings_by_expiry ON tunings (expires) WHERE expires IS NOT NULL;

CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    id TEXT NOT NULL,
    created REAL NOT NULL,
    level TEXT NOT NULL,
    message TEXT NOT NULL,
    kind TEXT NOT NULL,
    place REAL,  -- the step, or the learning rate
    data TEXT  -- JSON of figures
);
CREATE INDEX events_by_job ON events (job, number);
CREATE UNIQUE INDEX events_once ON events (job, kind, ifnull(place, -1)) WHERE kind != 'message';
