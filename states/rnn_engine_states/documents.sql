-- The tables of collections.

CREATE TABLE collections (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    model TEXT NOT NULL,
    model_name TEXT NOT NULL,
    created REAL NOT NULL,
    num_documents INTEGER NOT NULL DEFAULT 0,
    num_bytes INTEGER NOT NULL DEFAULT 0,
    changes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (owner, name)
);

CREATE TABLE documents (
    row INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, so a search can't return another document
    collection INTEGER NOT NULL,
    id TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    vector BLOB NOT NULL,  -- [D] f32, little-endian, of length 1; before the text, so that it is read alone
    metadata TEXT NOT NULL,  -- JSON
    text TEXT NOT NULL,
    UNIQUE (collection, id)
);
CREATE INDEX documents_by_collection ON documents (collection);  -- and by row

CREATE TABLE deleted (collection INTEGER PRIMARY KEY);  -- those whose documents are still there
