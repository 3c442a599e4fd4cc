-- What the second format has more: conversations and responses, in tables of things.sql, and what is said in them.

CREATE TABLE turns (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- greater than that of the turn before; never used again
    owner TEXT NOT NULL,
    parent INTEGER,  -- the turn before; NULL = a conversation begins with this one
    uses INTEGER NOT NULL,  -- how many later turns, conversations and responses need it; 0 = it is deleted
    num_items INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL
);
CREATE INDEX unused_turns ON turns (number) WHERE uses = 0;

CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- ascending within a turn, and from turn to turn
    turn INTEGER NOT NULL,
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    fields BLOB NOT NULL  -- JSON of all but the id
);
CREATE INDEX items_by_turn ON items (turn, id);

CREATE TABLE owners (name TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL);

CREATE TABLE ends (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,  -- of a conversation or a response
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,  -- the table that has its record
    turn INTEGER,  -- its last one; NULL = it has no items
    used REAL,  -- when it was used last; NULL = it does not give way
    body BLOB,  -- JSON of all of a response but its output
    request BLOB  -- for a response that has not ended
);
CREATE INDEX ends_by_use ON ends (owner, used);
