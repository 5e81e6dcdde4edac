-- The highest fence a value was written under: for as long as there is a value, and its own time longer.
CREATE TABLE fenced (
    key     TEXT    NOT NULL PRIMARY KEY,
    fence   INTEGER NOT NULL,
    kept_ms INTEGER NOT NULL, -- beyond the value's own end
    expires INTEGER,          -- none where the value has no end either
    ttl_ms  INTEGER           -- the whole of it
) WITHOUT ROWID, STRICT;
CREATE INDEX fenced_expires ON fenced (expires) WHERE expires IS NOT NULL;
