-- Values, which need no lock. A key consists of the kind of the value and its name.
CREATE TABLE cell (
    key     TEXT    NOT NULL PRIMARY KEY,
    value   BLOB    NOT NULL,
    expires INTEGER,          -- NULL: it does not expire
    ttl_ms  INTEGER
) WITHOUT ROWID, STRICT;
CREATE INDEX cell_expires ON cell (expires) WHERE expires IS NOT NULL;

-- One row for each key and each client that watches its value.
CREATE TABLE watching (
    key    TEXT    NOT NULL,
    client INTEGER NOT NULL,
    told   INTEGER NOT NULL, -- the value has changed since
    PRIMARY KEY (key, client)
) WITHOUT ROWID, STRICT;
CREATE INDEX watching_told ON watching (client) WHERE told;
