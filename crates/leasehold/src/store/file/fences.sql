-- The highest fence that a value was written under. It lasts as long as the value and `kept_ms`
-- longer.
CREATE TABLE fenced (
    key     TEXT    NOT NULL PRIMARY KEY,
    fence   INTEGER NOT NULL,
    kept_ms INTEGER NOT NULL, -- after the value's expiry
    expires INTEGER,          -- NULL: the value does not expire
    ttl_ms  INTEGER           -- the value's TTL and kept_ms
) WITHOUT ROWID, STRICT;
CREATE INDEX fenced_expires ON fenced (expires) WHERE expires IS NOT NULL;
