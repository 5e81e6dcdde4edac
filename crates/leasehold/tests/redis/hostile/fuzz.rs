//! Every script with hostile data: a state that clients have made, some changes that another program could make, and one request.
//! A case is made from its seed, and from the keys that the server lists.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::cells::rate::{Algorithm, Limit};
use leasehold::cells::store::{Key, Kind as Use, Put, When, Write};
use leasehold::store::quorum::Quorum;
use leasehold::{Claim, Error, Fence, Name, Result, Share, Store, Ticket, Ttl, Wait};
use leasehold_lab::{Client, Kind, Reply, Server};
use leasehold_testkit::{Dice, scaled};

use super::state::State;
use super::{LONG, claim, is_documented, longest_script, ms, open, permits, start};

/// A request that takes longer than this is looked at more closely.
const SHORT: Duration = Duration::from_millis(2);

/// A key of a state, and the texts in it.
struct Content {
    key: String,
    kind: String,
    texts: Vec<Vec<u8>>,
}

/// A state, with what stands in its keys.
struct Template {
    state: State,
    contents: Vec<Content>,
}

fn contents(server: &Server, state: &State) -> Vec<Content> {
    state.restore(server);
    let content = |key: String| {
        let kind = super::type_of(server, &key);
        let read: &[&str] = match kind.as_str() {
            "string" => &["GET", &key],
            "list" => &["LRANGE", &key, "0", "-1"],
            "hash" => &["HGETALL", &key],
            "zset" => &["ZRANGE", &key, "0", "-1"],
            other => panic!("{key} is of type {other}"),
        };
        let bytes = |reply: Reply| match reply {
            Reply::Bulk(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        let texts = match server.command(read).unwrap() {
            Reply::Array(texts) => texts.into_iter().map(bytes).collect(),
            text => vec![bytes(text)],
        };
        Content { key, kind, texts }
    };
    state.keys().into_iter().map(content).collect()
}

fn pick<'a, T>(dice: &mut Dice, from: &'a [T]) -> &'a T {
    &from[dice.below(from.len() as u64) as usize]
}

/// Mostly short, sometimes 1 MB.
fn size(dice: &mut Dice) -> usize {
    match dice.below(400) {
        0 => 1_000_000,
        1..=8 => 20_000,
        9..=40 => 500,
        _ => 20,
    }
}

/// One piece again and again, which is what a pattern takes long for.
fn bomb(dice: &mut Dice) -> Vec<u8> {
    let before = *pick(dice, &["", "#", "p", "p1/", "r:", "x\n1\n0\n1\n", "token#", "token#1\n"]);
    let middle =
        *pick(dice, &["0", "#", "\n", ":", "#0", "/", "!", "9", "p", "x\n", "b", "f", "\0", "\u{fc}"]);
    let after = *pick(dice, &["", "x", "#1", "\n", "!", "/2"]);
    format!("{before}{}{after}", middle.repeat(size(dice) / middle.len())).into_bytes()
}

const ODD: [&str; 18] = [
    "",
    "0",
    "-1",
    "1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "0x10",
    " 7",
    "7.5",
    "99999999999999999999",
    "ffffffffffffffff",
    "1fffffffffffff",
    "9007199254740993",
    "x",
    "p0/0",
    "p9999999999/1b",
];

/// A text made from one that clients have written.
fn hostile(dice: &mut Dice, content: &Content) -> Vec<u8> {
    let original = content
        .texts
        .get(dice.below(content.texts.len().max(1) as u64) as usize)
        .cloned()
        .unwrap_or_default();
    let at = dice.below(original.len() as u64 + 1) as usize;
    let in_a_field = |dice: &mut Dice, separator: u8| {
        let mut fields: Vec<Vec<u8>> =
            original.split(|byte| *byte == separator).map(<[u8]>::to_vec).collect();
        let place = dice.below(fields.len() as u64) as usize;
        fields[place] = match dice.below(4) {
            0 => bomb(dice),
            _ => pick(dice, &ODD).as_bytes().to_vec(),
        };
        fields.join(&separator)
    };
    match dice.below(12) {
        0 => pick(dice, &ODD).as_bytes().to_vec(),
        1 => bomb(dice),
        2 => original[..at].to_vec(),
        3 if at < original.len() => {
            let mut changed = original;
            changed[at] = *pick(dice, b"\n#/:!0x9-ep\0\xff");
            changed
        }
        4..=7 => in_a_field(dice, b'\n'),
        8 => in_a_field(dice, *pick(&mut Dice(at as u64), b"#:/@")),
        9 => [original.as_slice(), &bomb(dice)].concat(),
        10 => original.repeat(size(dice) / original.len().max(1) + 1),
        _ => [&original[..at], bomb(dice).as_slice(), &original[at..]].concat(),
    }
}

/// What another program does to one key, as commands.
fn mutation(dice: &mut Dice, contents: &[Content], known: &[Content]) -> Vec<Vec<Vec<u8>>> {
    let from = if dice.below(4) == 0 { known } else { contents };
    let content = pick(dice, from);
    let key = content.key.clone().into_bytes();
    let text = hostile(dice, content);
    let command = |parts: &[&[u8]]| parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>();
    let other = pick(dice, known).key.clone().into_bytes();
    let many = if dice.below(300) == 0 { 2_000 } else { 1 };
    let score = *pick(dice, &["-inf", "inf", "0", "1", "1e300", "-1e300", "9e15", "1794962474087458"]);
    match dice.below(20) {
        0 => vec![command(&[b"PERSIST", &key])],
        1 => vec![command(&[b"DEL", &key])],
        2 => vec![command(&[b"COPY", &key, &other, b"REPLACE"])],
        3 => vec![command(&[b"COPY", &other, &key, b"REPLACE"])],
        4..=5 => {
            let replaced = match dice.below(6) {
                0 => command(&[b"SET", &key, &text]),
                1 => command(&[b"RPUSH", &key, &text]),
                2 => command(&[b"HSET", &key, &text, &text]),
                3 => command(&[b"ZADD", &key, score.as_bytes(), &text]),
                4 => command(&[b"SADD", &key, &text]),
                _ => command(&[b"XADD", &key, b"*", b"field", &text]),
            };
            vec![command(&[b"DEL", &key]), replaced]
        }
        _ => {
            let added = |number: usize| match number {
                0 => text.clone(),
                number => [number.to_string().as_bytes(), &text[..text.len().min(100)]].concat(),
            };
            let place = pick(dice, &["0", "1", "-1"]).as_bytes();
            let field = match dice.below(3) {
                0 => text.clone(),
                _ => content.texts.get(dice.below(8) as usize / 2 * 2).cloned().unwrap_or_default(),
            };
            let push: &[u8] = pick::<&[u8]>(dice, &[b"LPUSH", b"RPUSH"]);
            match content.kind.as_str() {
                "string" if dice.below(2) == 0 => vec![command(&[b"SET", &key, &text, b"KEEPTTL"])],
                "string" => vec![command(&[b"SET", &key, &text, b"PX", b"600000"])],
                "list" if dice.below(3) == 0 => vec![command(&[b"LSET", &key, place, &text])],
                "list" => vec![[push.to_vec(), key].into_iter().chain((0..many).map(added)).collect()],
                "hash" => vec![command(&[b"HSET", &key, &field, &text])],
                _ => vec![
                    [b"ZADD".to_vec(), key]
                        .into_iter()
                        .chain((0..many).flat_map(|n| [score.as_bytes().to_vec(), added(n)]))
                        .collect(),
                ],
            }
        }
    }
}

/// Puts a state in place and changes it, in one go.
fn prepare(client: &mut Client, state: &State, changes: &[Vec<Vec<u8>>]) {
    let mut commands = state.commands();
    commands.extend(changes.iter().map(|change| Client::encoded(change)));
    client.send(&commands.concat()).unwrap();
    // A change may not fit the type that an earlier one has left.
    commands.iter().for_each(|_| drop(client.receive().unwrap()));
}

/// One request about the name `x`, of a client that holds it, waits for it or has nothing to do with it.
async fn ask_about_a_lock(dice: &mut Dice, store: &dyn Store, tickets: &[Ticket]) -> Result<()> {
    let share =
        *pick(dice, &[Share::Exclusive, Share::Exclusive, Share::Shared, permits(1, 3), permits(2, 2)]);
    let share = match share {
        _ if !store.capabilities().shared => Share::Exclusive,
        Share::Permits(permits) if dice.below(2) == 0 => Share::Permits(permits.barging()),
        share => share,
    };
    let names: &[&str] =
        if store.capabilities().several_names && dice.below(4) == 0 { &["x", "y"] } else { &["x"] };
    let (name, ticket): (Name, Ticket) = ("x".parse()?, pick(dice, tickets).clone());
    let soon = Wait::Until(store.clock().now().plus(ms(1)));
    let ttl = Ttl::new(ms(600_000))?;
    match dice.below(16) {
        0..=2 => store.acquire(&claim(names, share, Wait::Never)).await.map(drop),
        3..=4 => {
            let claim = claim(names, share, soon);
            let answer = store.acquire(&claim).await.map(drop);
            store.release(&claim.ticket).await?;
            answer
        }
        5 => {
            let again =
                Claim { ticket: Ticket { fence: None, ..ticket }, ..claim(&["x"], Share::Exclusive, soon) };
            store.acquire(&again).await.map(drop)
        }
        6..=7 => store.release(&ticket).await.map(drop),
        8 => {
            let due: Vec<(Ticket, Ttl)> = tickets.iter().map(|ticket| (ticket.clone(), ttl)).collect();
            store.renew(&due).await.into_iter().find(Result::is_err).map_or(Ok(()), |error| error.map(drop))
        }
        9 => store.detach(&ticket, ttl).await.map(drop),
        10 if store.capabilities().conversions => {
            let to = if ticket.share == Share::Shared { Share::Exclusive } else { Share::Shared };
            store.convert(&ticket, to).await.map(drop)
        }
        11 => store.inspect(&name).await.map(drop),
        12 => store.list("", 100).await.map(drop),
        13 => store.evict(&name).await.map(drop),
        14 => store.adopt(&name, ttl).await.map(drop),
        _ => {
            let claims: Vec<Claim> =
                (0..6).map(|n| claim(&[["x", "y", "z"][n % 3]], share, Wait::Never)).collect();
            let answers = join_all(claims.iter().map(|claim| store.acquire(claim))).await;
            let released = join_all(claims.iter().map(|claim| store.release(&claim.ticket))).await;
            let failed = answers
                .into_iter()
                .filter_map(Result::err)
                .chain(released.into_iter().filter_map(Result::err));
            failed.last().map_or(Ok(()), Err)
        }
    }
}

fn key_of(kind: Use) -> Key {
    Key::new(kind, "x".parse().unwrap())
}

fn limits() -> [Limit; 4] {
    let period = Duration::from_secs(600);
    [
        Limit::new(Algorithm::FixedWindow, 10, period).unwrap(),
        Limit::new(Algorithm::SlidingWindow, 10, period).unwrap(),
        Limit::new(Algorithm::SlidingWindow, 1_000_000, Duration::from_secs(60)).unwrap(),
        Limit::new(Algorithm::Gcra { burst: 5 }, 10, period).unwrap(),
    ]
}

/// One request about a value, a number or a rate limit.
async fn ask_about_a_value(dice: &mut Dice, store: &dyn Store) -> Result<()> {
    let cells = store.cells().unwrap();
    let (cell, ttl) = (key_of(Use::Cell), Ttl::new(ms(600_000)).ok());
    let kept_for = Ttl::new(ms(600_000))?;
    let fence = Fence::new(*pick(dice, &[1, 7, u64::from(u32::MAX)]))?;
    let when = match dice.below(4) {
        0 => When::Always,
        1 => When::Absent,
        2 => When::Is(b"first".to_vec()),
        _ => When::Fenced { fence, kept_for },
    };
    let value = (dice.below(4) > 0).then(|| b"second".to_vec());
    match dice.below(9) {
        0..=2 => cells
            .write(&cell, &Write { when, value, ttl: ttl.filter(|_| dice.below(2) == 0) })
            .await
            .map(drop),
        3 => cells.read(&cell).await.map(drop),
        4 => cells.add(&key_of(Use::Counter), 3, ttl.filter(|_| dice.below(2) == 0)).await.map(drop),
        5 => {
            let mut plan = |_: Option<&[u8]>| Some(Put { value: value.clone(), ttl: None });
            cells.change(&cell, &mut plan).await.map(drop)
        }
        6 => cells.changed(&cell, Some(b"first"), store.clock().now()).await,
        _ => cells.take(&key_of(Use::Rate), pick(dice, &limits()), 1).await.map(drop),
    }
}

/// A value that is watched and was written under a fence, a number, and rate limits.
async fn values(server: &Server, store: &dyn Store) -> State {
    server.command(&["FLUSHALL"]).unwrap();
    let cells = store.cells().unwrap();
    let (cell, kept_for) = (key_of(Use::Cell), Ttl::new(ms(600_000)).unwrap());
    let when = When::Fenced { fence: Fence::new(7).unwrap(), kept_for };
    cells.write(&cell, &Write { when, value: Some(b"first".to_vec()), ttl: Some(kept_for) }).await.unwrap();
    cells.changed(&cell, Some(b"first"), store.clock().now()).await.unwrap();
    cells.add(&key_of(Use::Counter), 1, Some(kept_for)).await.unwrap();
    for limit in limits() {
        for _ in 0..3 {
            let _ = cells.take(&key_of(Use::Rate), &limit, 1).await.unwrap();
        }
    }
    State::taken(server, "values", Vec::new())
}

/// What the cases of one store came to.
#[derive(Default)]
struct Tally {
    cases: u64,
    refused: u64,
    longest: Duration,
    /// Of the case with the longest script.
    seed: u64,
}

impl Tally {
    fn print(&self, what: &str) {
        let Tally { cases, refused, longest, seed } = self;
        println!(
            "{what}: {cases} cases, {refused} refused, the longest script took {longest:?} ({SEED}={seed})"
        );
    }
}

/// Servers that all get the same data, and how to open the store over them.
struct Bench<'a, F> {
    servers: &'a [Server],
    templates: Vec<Template>,
    reopen: F,
}

/// The environment variable with the seed of a case to run alone.
const SEED: &str = "LEASEHOLD_FUZZ_SEED";

impl<S: Store, F: AsyncFn() -> S> Bench<'_, F> {
    async fn run(&self, cases: u64, first_seed: u64) -> Tally {
        let seed = std::env::var(SEED).ok().map(|seed| seed.parse().unwrap());
        let (first_seed, cases) = seed.map_or((first_seed, cases), |seed| (seed, 1));
        let mut tally = Tally::default();
        let mut clients: Vec<Client> =
            self.servers.iter().map(|server| Client::unix(&server.socket()).unwrap()).collect();
        for client in &mut clients {
            client.patience(Duration::from_secs(60)).unwrap();
            assert!(client.command(&["AUTH", "lab", "any"]).unwrap().is_ok());
        }
        let mut store = (self.reopen)().await;
        for seed in first_seed..first_seed + cases {
            let mut least = Duration::MAX;
            // On a busy machine a script may be kept from its processor: the best of three counts.
            for _ in 0..3 {
                let (elapsed, is_at_the_limit, refused) = self.case(&mut clients, &store, seed).await;
                tally.refused += refused;
                // A fence that another program made up may be the highest there is: this client stays above it.
                if is_at_the_limit {
                    store = (self.reopen)().await;
                }
                if elapsed < SHORT {
                    least = Duration::ZERO;
                    break;
                }
                least = least.min(self.servers.iter().map(longest_script).max().unwrap_or_default());
            }
            assert!(least < LONG, "seed {seed}: a script took {least:?}");
            if least > tally.longest {
                (tally.longest, tally.seed) = (least, seed);
            }
            tally.cases += 1;
        }
        tally
    }

    /// One case: how long its request took, whether the fence is at its limit, and how many requests were refused.
    async fn case(&self, clients: &mut [Client], store: &S, seed: u64) -> (Duration, bool, u64) {
        let mut dice = Dice(seed);
        let template = pick(&mut dice, &self.templates);
        let known = &pick(&mut dice, &self.templates).contents;
        let changes: Vec<_> =
            (0..=dice.below(3)).flat_map(|_| mutation(&mut dice, &template.contents, known)).collect();
        clients.iter_mut().for_each(|client| prepare(client, &template.state, &changes));
        let since = Instant::now();
        let (mut refused, mut is_at_the_limit) = (0, false);
        let mut judge = |what: &str, answer: Result<()>| {
            let Err(error) = answer else { return };
            refused += 1;
            is_at_the_limit |= error.to_string().contains("limit of 2^53");
            let is_expected = match &error {
                Error::Quorum { .. } => {
                    let said = error.to_string();
                    !["script", "ERR", "WRONGTYPE", "no sense", "in time"]
                        .iter()
                        .any(|word| said.contains(word))
                }
                error => is_documented(error),
            };
            let changes: Vec<String> = changes
                .iter()
                .map(|change| {
                    let shown =
                        change.iter().map(|part| part[..part.len().min(300)].escape_ascii().to_string());
                    shown.collect::<Vec<_>>().join(" ")
                })
                .collect();
            assert!(
                is_expected,
                "seed {seed}, {what} of {}: {error}\n{}",
                template.state.what,
                changes.join("\n")
            );
        };
        if template.state.tickets.is_empty() {
            judge("a value", ask_about_a_value(&mut dice, store).await);
        } else {
            judge("a lock", ask_about_a_lock(&mut dice, store, &template.state.tickets).await);
            if dice.below(4) == 0 {
                let name: Name = "x".parse().unwrap();
                judge("inspect", store.inspect(&name).await.map(drop));
                let evicted = store.evict(&name).await;
                let is_repaired = evicted.is_ok();
                judge("evict", evicted.map(drop));
                if is_repaired {
                    let answer = store.acquire(&claim(&["x"], Share::Exclusive, Wait::Never)).await;
                    let at_the_limit = |error: &Error| error.to_string().contains("limit of 2^53");
                    assert!(
                        answer.as_ref().err().is_none_or(at_the_limit) || self.servers.len() > 1,
                        "seed {seed}: not repaired: {answer:?}"
                    );
                    judge("after a forced release", answer.map(drop));
                }
            }
        }
        (since.elapsed(), is_at_the_limit, refused)
    }
}

async fn templates(server: &Server, states: Vec<State>) -> Vec<Template> {
    let template = |state: State| Template { contents: contents(server, &state), state };
    states.into_iter().map(template).collect()
}

async fn one_server(kind: Kind, cases: u64, first_seed: u64) {
    let servers = [start(kind)];
    let store = open(&servers[0]).await;
    let mut states = State::of_locks(&servers[0], &store).await;
    states.push(values(&servers[0], &store).await);
    drop(store);
    let templates = templates(&servers[0], states).await;
    let reopen = async || open(&servers[0]).await;
    Bench { servers: &servers, templates, reopen }.run(cases, first_seed).await.print(&format!("{kind:?}"));
}

async fn a_quorum(cases: u64, first_seed: u64) {
    let servers = [Kind::Redis, Kind::Valkey, Kind::Redis].map(start);
    let nodes = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let reopen = async || {
        let url = format!("redlock:{nodes}?quarantine=off&timeout=60000&max_ttl=3600000&retry_count=1");
        Quorum::open(&url).await.unwrap()
    };
    let store = reopen().await;
    let held = claim(&["x"], Share::Exclusive, Wait::Never);
    let waiters = [claim(&["x"], Share::Exclusive, Wait::Forever)];
    let tickets = State::with_waiters(&servers[0], &store, &held, &waiters).await;
    let states = vec![State::taken(&servers[0], "a quorum", tickets)];
    drop(store);
    let templates = templates(&servers[0], states).await;
    Bench { servers: &servers, templates, reopen }.run(cases, first_seed).await.print("a quorum");
}

/// Of 100,000 cases at full scale, most are of one server.
#[tokio::test]
async fn no_script_fails_or_runs_long_on_redis_whatever_other_programs_write() {
    one_server(Kind::Redis, scaled(45_000), 0).await;
}

#[tokio::test]
async fn no_script_fails_or_runs_long_on_valkey_whatever_other_programs_write() {
    one_server(Kind::Valkey, scaled(45_000), 1 << 32).await;
}

#[tokio::test]
async fn no_script_fails_or_runs_long_on_a_quorum_whatever_other_programs_write() {
    a_quorum(scaled(10_000), 1 << 33).await;
}
