-- Who holds and who waits. Times are nanoseconds on CLOCK_BOOTTIME; a client is the number in its file names.
-- Rows are few and small, and so are the pages: a commit writes each page that it touches.

-- One row. `last` is the highest number given, as a fence or as a place in line: both come from one series, which
-- follows the wall clock and only rises. The times belong to the boot with this id, and to a clock that a time namespace
-- may have set off from the kernel's by so much.
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
    most     INTEGER NOT NULL, -- the limit that the permits were claimed under
    fence    INTEGER NOT NULL,
    fences   INTEGER NOT NULL,
    expires  INTEGER NOT NULL,
    ttl_ms   INTEGER NOT NULL,
    client   INTEGER NOT NULL, -- whose death ends it, unless detached
    detached INTEGER NOT NULL,
    handed   INTEGER NOT NULL, -- it was granted to one who waited, and who has to be told
    several  INTEGER NOT NULL, -- the claim has other names too
    PRIMARY KEY (name, token)
) WITHOUT ROWID, STRICT;
CREATE INDEX holding_handed  ON holding (client) WHERE handed;
CREATE INDEX holding_several ON holding (token)  WHERE several;

-- One row for each name of each claim that waits. The lowest arrival is first in line.
CREATE TABLE waiting (
    name        TEXT    NOT NULL,
    arrival     INTEGER NOT NULL,
    token       TEXT    NOT NULL,
    share       INTEGER NOT NULL,
    take        INTEGER NOT NULL,
    most        INTEGER NOT NULL,
    fences      INTEGER NOT NULL,
    ttl_ms      INTEGER NOT NULL,
    shows_until INTEGER NOT NULL, -- past this it counts as gone
    client      INTEGER NOT NULL,
    detached    INTEGER NOT NULL,
    told        INTEGER NOT NULL, -- whom it watches has changed: it is to look again
    several     INTEGER NOT NULL,
    PRIMARY KEY (name, arrival)
) WITHOUT ROWID, STRICT;
CREATE INDEX waiting_token ON waiting (token);
CREATE INDEX waiting_told  ON waiting (client) WHERE told;
CREATE INDEX waiting_barge ON waiting (name, most - take) WHERE share = 3;
