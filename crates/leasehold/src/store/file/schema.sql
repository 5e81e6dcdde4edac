-- Holders and waiters. Times are nanoseconds on CLOCK_BOOTTIME. A client is the number in its file
-- names. Pages are small, because rows are few and small, and a commit writes each page that it
-- touches.

-- One row. `last` is the highest allocated number. Fences and arrivals come from one series, which
-- follows the wall clock and only rises. All times belong to the boot with the id `boot`, and to a
-- clock that a time namespace has moved by `set_off_by` from the kernel's.
CREATE TABLE meta (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    last       INTEGER NOT NULL,
    boot       TEXT    NOT NULL,
    set_off_by TEXT    NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, 0, '', '');

-- One row for each name of each claim that is held.
CREATE TABLE holding (
    name     TEXT    NOT NULL,
    token    TEXT    NOT NULL,
    share    INTEGER NOT NULL, -- 0 exclusive, 1 shared, 2 permits in order, 3 permits that barge
    take     INTEGER NOT NULL,
    most     INTEGER NOT NULL, -- the limit of the permits' claim
    fence    INTEGER NOT NULL,
    fences   INTEGER NOT NULL,
    expires  INTEGER NOT NULL,
    ttl_ms   INTEGER NOT NULL,
    client   INTEGER NOT NULL, -- its death ends the lease, unless detached
    detached INTEGER NOT NULL,
    handed   INTEGER NOT NULL, -- granted to a waiter that has to be notified
    several  INTEGER NOT NULL, -- the claim has other names too
    PRIMARY KEY (name, token)
) WITHOUT ROWID, STRICT;
CREATE INDEX holding_handed  ON holding (client) WHERE handed;
CREATE INDEX holding_several ON holding (token)  WHERE several;

-- One row for each name of each claim that waits. The waiter with the lowest arrival is first.
CREATE TABLE waiting (
    name        TEXT    NOT NULL,
    arrival     INTEGER NOT NULL,
    token       TEXT    NOT NULL,
    share       INTEGER NOT NULL,
    take        INTEGER NOT NULL,
    most        INTEGER NOT NULL,
    fences      INTEGER NOT NULL,
    ttl_ms      INTEGER NOT NULL,
    shows_until INTEGER NOT NULL, -- the waiter expires then
    client      INTEGER NOT NULL,
    detached    INTEGER NOT NULL,
    told        INTEGER NOT NULL, -- it has to check again which clients to watch
    several     INTEGER NOT NULL,
    PRIMARY KEY (name, arrival)
) WITHOUT ROWID, STRICT;
CREATE INDEX waiting_token ON waiting (token);
CREATE INDEX waiting_told  ON waiting (client) WHERE told;
CREATE INDEX waiting_barge ON waiting (name, most - take) WHERE share = 3;
