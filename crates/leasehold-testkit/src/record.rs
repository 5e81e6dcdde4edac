//! A store's own record of the holders and the queue of one name: the append-only file of Redis and
//! Valkey, or triggers in a file store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader};
use std::path::Path;

use leasehold_lab::{Kind, Server, Setup};
use rusqlite::Connection;

use super::history::{Life, Part, Sum};

#[derive(Debug)]
struct Holding {
    part: Part,
    barges: bool,
    fence: u64,
    /// The time of the grant, on the store's clock.
    at: u64,
}

/// Follows the changes, and judges each state that other clients could see.
#[derive(Default)]
pub struct Record {
    limit: u32,
    /// The times of the kills by label, on the store's clock.
    killed: HashMap<String, u64>,
    holds: BTreeMap<String, Holding>,
    line: BTreeSet<(u64, String)>,
    arrivals: HashMap<String, u64>,
    /// The readers granted before each waiter joined.
    joined: HashMap<String, u64>,
    readers: u64,
    new: Vec<String>,
    pub verdict: Verdict,
}

#[derive(Debug, Default)]
pub struct Verdict {
    pub grants: u64,
    /// Grants to clients that had waited in the queue.
    pub from_the_line: u64,
    pub line_most: usize,
    pub permits_most: u32,
    pub readers_most: u32,
    /// Grants that do not fit beside the other holders.
    pub too_many: u64,
    /// Live waiters that a later, non-barging client passed.
    pub overtaken: Vec<String>,
    /// The most readers granted between the arrival of an exclusive waiter and its grant.
    pub readers_before_a_writer: u64,
}

impl Record {
    fn new(limit: u32, killed: HashMap<String, u64>) -> Self {
        Record { limit, killed, ..Record::default() }
    }

    fn joins(&mut self, token: &str, arrival: u64) {
        self.line.insert((arrival, token.to_owned()));
        self.arrivals.insert(token.to_owned(), arrival);
        self.joined.entry(token.to_owned()).or_insert(self.readers);
        self.verdict.line_most = self.verdict.line_most.max(self.line.len());
    }

    fn leaves(&mut self, token: &str) {
        if let Some(arrival) = self.arrivals.get(token) {
            self.line.remove(&(*arrival, token.to_owned()));
        }
    }

    fn holds(&mut self, token: &str, holding: Holding) {
        if self.holds.insert(token.to_owned(), holding).is_none() {
            self.new.push(token.to_owned());
        }
    }

    fn lived(&self, token: &str, at: u64) -> bool {
        let label = token.split_once('@').map_or("", |(_, label)| label);
        self.killed.get(label).is_none_or(|killed| at < *killed)
    }

    /// Judges the changes since the last call, which other clients see from now on.
    fn settle(&mut self) {
        let mut sum = Sum::default();
        self.holds.values().for_each(|holding| sum.add(holding.part));
        self.verdict.permits_most = self.verdict.permits_most.max(sum.permits);
        self.verdict.readers_most = self.verdict.readers_most.max(sum.readers);
        for token in std::mem::take(&mut self.new) {
            let Some(holding) = self.holds.get(&token) else { continue };
            self.verdict.grants += 1;
            self.verdict.too_many += u64::from(!sum.fits(self.limit));
            let arrival = self.arrivals.get(&token).copied();
            self.verdict.from_the_line += u64::from(arrival.is_some());
            match holding.part {
                Part::Reader => self.readers += 1,
                Part::All => {
                    let since = self.joined.get(&token).map_or(0, |before| self.readers - before);
                    self.verdict.readers_before_a_writer = self.verdict.readers_before_a_writer.max(since);
                }
                Part::Permits(_) => {}
            }
            if !holding.barges {
                let place = (arrival.unwrap_or(holding.fence), String::new());
                let ahead = self.line.range(..place).filter(|(_, other)| self.lived(other, holding.at));
                let passed: Vec<String> =
                    ahead.map(|(_, other)| format!("{token} passed {other}: {holding:?}")).collect();
                self.verdict.overtaken.extend(passed);
            }
        }
    }
}

// ---- Redis and Valkey ----

pub fn recording(kind: Kind) -> Server {
    // Read while the server runs, so without fsync; never rewritten, which would drop changes.
    let setup = Setup::new(kind).line("appendonly yes").line("appendfsync no");
    setup.line("auto-aof-rewrite-percentage 0").start().unwrap()
}

pub fn of_server(server: &Server, name: &str, limit: u32, lives: &[Life]) -> Verdict {
    let killed = lives.iter().filter_map(|life| Some((life.label.clone(), life.killed?.wall_us)));
    let mut reader = Reader {
        key: format!("lock:{name}"),
        line: format!("{{lock:{name}}}:line"),
        wait: format!("{{lock:{name}}}:wait"),
        order: Vec::new(),
        arrivals: HashMap::new(),
        members: BTreeMap::new(),
        record: Record::new(limit, killed.collect()),
        is_inside: false,
    };
    commands(server).for_each(|command| reader.follow(&command));
    reader.record.verdict
}

/// Returns every write command, in order, from the append-only file.
pub fn commands(server: &Server) -> impl Iterator<Item = Vec<String>> {
    // Commands are in the file before their replies.
    server.command(&["PING"]).unwrap();
    let path = server.folder().join("data/appendonlydir/appendonly.aof.1.incr.aof");
    let mut log = BufReader::new(std::fs::File::open(path).unwrap());
    std::iter::from_fn(move || next_command(&mut log))
}

struct Reader {
    key: String,
    line: String,
    wait: String,
    /// The queue.
    order: Vec<String>,
    arrivals: HashMap<String, u64>,
    /// The sorted set of holders, each with its end in ms.
    members: BTreeMap<String, u64>,
    record: Record,
    /// Inside a transaction, whose changes become visible together.
    is_inside: bool,
}

impl Reader {
    fn follow(&mut self, command: &[String]) {
        let (word, args) = (command[0].to_uppercase(), &command[1..]);
        match word.as_str() {
            "MULTI" => self.is_inside = true,
            "EXEC" => self.is_inside = false,
            "DEL" | "UNLINK" if args.contains(&self.key) => self.drop_all(),
            _ if args.first() == Some(&self.key) => self.follow_key(&word, &args[1..]),
            _ if args.first() == Some(&self.line) => self.follow_line(&word, &args[1..]),
            _ if args.first() == Some(&self.wait) => self.follow_wait(&word, &args[1..]),
            _ => {}
        }
        if !self.is_inside {
            for token in &self.order {
                let arrival = self.arrivals[token];
                if !self.record.line.contains(&(arrival, token.clone())) {
                    self.record.joins(token, arrival);
                }
            }
            self.record.settle();
        }
    }

    fn drop_all(&mut self) {
        self.members.clear();
        self.record.holds.clear();
    }

    fn drop_member(&mut self, member: &str) {
        if self.members.remove(member).is_some() {
            self.record.holds.remove(&token_of(member));
        }
    }

    fn follow_key(&mut self, word: &str, args: &[String]) {
        match word {
            // An exclusive holder replaces all earlier holders.
            "SET" => {
                self.drop_all();
                let fence = fence_of(&args[0]);
                let holding = Holding { part: Part::All, barges: false, fence, at: fence };
                self.record.holds(&token_of(&args[0]), holding);
            }
            "ZADD" => {
                for (score, member) in scored(args) {
                    let (share, _) = member.split_once(':').unwrap();
                    let fence = fence_of(member);
                    let part = match share.strip_prefix('p') {
                        Some(permits) => Part::Permits(permits.split('/').next().unwrap().parse().unwrap()),
                        None => Part::Reader,
                    };
                    self.members.insert(member.clone(), score);
                    let holding = Holding { part, barges: share.ends_with('b'), fence, at: fence };
                    self.record.holds(&token_of(member), holding);
                }
            }
            "ZREM" => args.iter().for_each(|member| self.drop_member(member)),
            "ZREMRANGEBYSCORE" => {
                let until: u64 = args[1].parse().unwrap();
                let ended = self.members.iter().filter(|(_, end)| **end <= until);
                let ended: Vec<String> = ended.map(|(member, _)| member.clone()).collect();
                ended.iter().for_each(|member| self.drop_member(member));
            }
            "PEXPIRE" | "PEXPIREAT" => {}
            other => panic!("{other} {args:?}"),
        }
    }

    fn follow_line(&mut self, word: &str, args: &[String]) {
        match word {
            "RPUSH" => self.order.extend_from_slice(args),
            "LPUSH" => self.order.insert(0, args[0].clone()),
            "LINSERT" => {
                assert_eq!(args[0], "BEFORE");
                let at = self.order.iter().position(|token| *token == args[1]).unwrap();
                self.order.insert(at, args[2].clone());
            }
            "LPOP" => self.leaves(0),
            "LREM" => {
                let at = self.order.iter().position(|token| *token == args[1]);
                at.into_iter().for_each(|at| self.leaves(at));
            }
            "DEL" | "UNLINK" => {
                self.order.clear();
                self.record.line.clear();
            }
            "PEXPIRE" | "PEXPIREAT" => {}
            other => panic!("{other} {args:?}"),
        }
        let mut each: Vec<&String> = self.order.iter().collect();
        each.sort();
        assert!(each.is_sorted_by(|a, b| a < b), "somebody stands in line twice: {:?}", self.order);
    }

    fn leaves(&mut self, at: usize) {
        let token = self.order.remove(at);
        self.record.leaves(&token);
    }

    fn follow_wait(&mut self, word: &str, args: &[String]) {
        if matches!(word, "HSET" | "HSETNX") {
            let arrival = args[1].split('\n').nth(7).unwrap();
            self.arrivals.insert(args[0].clone(), u64::from_str_radix(arrival, 16).unwrap());
        }
    }
}

/// The pairs of a ZADD, after its options.
fn scored(args: &[String]) -> impl Iterator<Item = (u64, &String)> {
    let options = args.iter().take_while(|arg| arg.chars().all(|c| c.is_ascii_alphabetic())).count();
    args[options..].chunks(2).map(|pair| (pair[0].parse().unwrap(), &pair[1]))
}

/// Parses `token#fence` or `share:token#fence`.
fn token_of(value: &str) -> String {
    let value = value.split('\n').next().unwrap();
    let (token, _) = value.rsplit_once('#').unwrap();
    match token.split_once(':') {
        Some((share, token)) if !share.contains('@') => token.to_owned(),
        _ => token.to_owned(),
    }
}

fn fence_of(value: &str) -> u64 {
    let (_, fence) = value.split('\n').next().unwrap().rsplit_once('#').unwrap();
    let hex: String = fence.chars().take_while(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&hex, 16).unwrap()
}

/// Returns the next whole command in the log.
fn next_command(log: &mut impl BufRead) -> Option<Vec<String>> {
    let count = number(log, '*')?;
    (0..count)
        .map(|_| {
            let mut bytes = vec![0; number(log, '$')? + 2];
            log.read_exact(&mut bytes).ok()?;
            bytes.truncate(bytes.len() - 2);
            Some(String::from_utf8_lossy(&bytes).into_owned())
        })
        .collect()
}

fn number(log: &mut impl BufRead, mark: char) -> Option<usize> {
    let mut line = String::new();
    log.read_line(&mut line).ok().filter(|length| *length > 0)?;
    line.strip_prefix(mark).unwrap_or_else(|| panic!("{line:?}")).trim_end().parse().ok()
}

// ---- the file store ----

/// Records all changes of the file store in this directory, by triggers.
pub fn record_in(home: &Path) {
    let db = Connection::open(home.join("locks.db")).unwrap();
    db.busy_timeout(super::secs(10)).unwrap();
    db.execute_batch(
        "CREATE TABLE record (number INTEGER PRIMARY KEY, what TEXT, name TEXT, token TEXT, share INTEGER, take INTEGER,
                              place INTEGER, at INTEGER);
         CREATE TRIGGER record_holds AFTER INSERT ON holding BEGIN
             INSERT INTO record VALUES (NULL, 'holds', NEW.name, NEW.token, NEW.share, NEW.take, NEW.fence,
                                        NEW.expires - NEW.ttl_ms * 1000000); END;
         CREATE TRIGGER record_gone AFTER DELETE ON holding BEGIN
             INSERT INTO record VALUES (NULL, 'gone', OLD.name, OLD.token, 0, 0, 0, 0); END;
         CREATE TRIGGER record_joins AFTER INSERT ON waiting BEGIN
             INSERT INTO record VALUES (NULL, 'joins', NEW.name, NEW.token, 0, 0, NEW.arrival, 0); END;
         CREATE TRIGGER record_leaves AFTER DELETE ON waiting BEGIN
             INSERT INTO record VALUES (NULL, 'leaves', OLD.name, OLD.token, 0, 0, 0, 0); END;",
    )
    .unwrap();
}

pub fn of_files(home: &Path, name: &str, limit: u32, lives: &[Life]) -> Verdict {
    let db = Connection::open(home.join("locks.db")).unwrap();
    let killed = lives.iter().filter_map(|life| Some((life.label.clone(), life.killed?.boot_ns)));
    let mut record = Record::new(limit, killed.collect());
    let mut select = db
        .prepare("SELECT what, token, share, take, place, at FROM record WHERE name = ?1 ORDER BY number")
        .unwrap();
    let mut rows = select.query([name]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (what, token): (String, String) = (row.get(0).unwrap(), row.get(1).unwrap());
        let [share, take, place, at] = [2, 3, 4, 5].map(|i| row.get::<_, i64>(i).unwrap() as u64);
        match what.as_str() {
            "joins" => record.joins(&token, place),
            "leaves" => record.leaves(&token),
            "gone" => drop(record.holds.remove(&token)),
            "holds" => {
                let part = match share {
                    0 => Part::All,
                    1 => Part::Reader,
                    _ => Part::Permits(take as u32),
                };
                record.holds(&token, Holding { part, barges: share == 3, fence: place, at });
                // Other grants of the same step come later, and earlier leavers have left.
                record.leaves(&token);
                record.settle();
            }
            other => panic!("{other}"),
        }
    }
    record.verdict
}
