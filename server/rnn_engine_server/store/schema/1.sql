-- The first format of the database in a folder of jobs: files, batches and tuning jobs, each in a table of things.sql.

-- The files that unfinished jobs need.
CREATE TABLE held_files (file TEXT NOT NULL, job TEXT NOT NULL, PRIMARY KEY (file, job)) WITHOUT ROWID;
CREATE INDEX held_files_by_job ON held_files (job);

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
