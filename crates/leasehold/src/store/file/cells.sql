-- Values that need no lock, and who is to be told of their changes. A key says of which kind a value is, and its name.
CREATE TABLE cell (
    key     TEXT    NOT NULL PRIMARY KEY,
    value   BLOB    NOT NULL,
    expires INTEGER,          -- none for one that stays
    ttl_ms  INTEGER
) WITHOUT ROWID, STRICT;
CREATE INDEX cell_expires ON cell (expires) WHERE expires IS NOT NULL;

-- One row for each client with somebody who watches.
CREATE TABLE watching (
    key    TEXT    NOT NULL,
    client INTEGER NOT NULL,
    told   INTEGER NOT NULL, -- it has changed since
    PRIMARY KEY (key, client)
) WITHOUT ROWID, STRICT;
CREATE INDEX watching_told ON watching (client) WHERE told;
