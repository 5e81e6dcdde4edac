//! Values on the server, each under a key of its own that other programs can read and write.

use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, ErrorKind, Pipeline, ServerErrorKind, Value, cmd};
use tokio::runtime::Handle;

use super::bare::deal::Deal;
use super::bare::wires::Wires;
use super::keys::Keys;
use super::link::{Link, explained};
use super::reply::{odd, text};
use super::script::{
    CELL_ADD, CELL_READ, CELL_TELL, CELL_WATCH, CELL_WRITE, RATE_FIXED, RATE_GCRA, RATE_SLIDING, Script,
};
use super::{POLL_MAX, POLL_MIN};
use crate::cells::rate::{Algorithm, Limit, Taken};
use crate::cells::store::{
    Answer, CellStore, Changed, Kept, Key, Plan, Put, ScriptKey, When, Write, Written, change_by_comparison,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::store::watchers::Watchers;
use crate::sync::Arc;
use crate::ttl::Ttl;

/// What stands before the key of a value in what watchers are told, as in `cell_prelude.lua`. No token of a lock begins so.
pub(super) const CHANGED: char = '=';

/// How often whoever is told of changes looks all the same: another program tells nobody.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// For how long a watch is kept that is not shown again.
const WATCHED_FOR: Duration = Duration::from_secs(30);

/// A fence as text has always as many digits, so that scripts can compare it: their numbers have 53 bits.
const FENCE_DIGITS: usize = 19;

/// What is left of a value, asked for twice at once, differs by no more than this.
const AGREE_MS: i64 = 10;

pub(super) struct Cells {
    /// What pushes come over.
    link: Arc<Link>,
    /// What values go over, once there are any; where the connection is not ours to make another of, all go over one.
    values: OnceLock<Link>,
    runtime: Option<Handle>,
    keys: Arc<Keys>,
    clock: Clock,
    watchers: Arc<Watchers>,
    /// Nothing where nobody listens.
    channel: String,
    /// For what has to be watched; none where the connection is not ours to make another of.
    wires: Option<Wires>,
}

impl Cells {
    pub(super) fn new(
        link: &Arc<Link>,
        keys: &Arc<Keys>,
        clock: &Clock,
        watchers: &Arc<Watchers>,
        channel: &str,
        wires: Option<Wires>,
    ) -> Self {
        let (link, keys, clock, watchers) = (link.clone(), keys.clone(), clock.clone(), watchers.clone());
        let (values, runtime) = (OnceLock::new(), Handle::try_current().ok());
        Cells { link, values, runtime, keys, clock, watchers, channel: channel.to_owned(), wires }
    }

    /// The connection for values. It belongs to the runtime of the store, whichever asks first.
    fn values(&self) -> &Link {
        let Some(wires) = &self.wires else { return &self.link };
        self.values.get_or_init(|| {
            let _runtime = self.runtime.as_ref().map(Handle::enter);
            wires.shared(&self.clock)
        })
    }

    async fn ask(&self, script: &Script, key: &Key, args: &[&[u8]]) -> Result<Value> {
        let session = self.values().session().await?;
        self.values().run(&session, script, |to| self.write_args(to, key, args)).await.map_err(explained)
    }

    /// The keys that belong to a value, and the arguments of a script.
    fn write_args(&self, to: &mut Cmd, key: &Key, args: &[&[u8]]) {
        let Cells { keys, .. } = self;
        to.arg(3).arg(keys.of_value(key)).arg(keys.beside_value(key, "watch"));
        to.arg(keys.beside_value(key, "fence")).arg(args);
    }

    /// What the server does by itself needs no script, which takes it longer. Whoever watches is told in a second step: if that
    /// does not happen, it finds out when it looks.
    async fn add_plainly(&self, key: &Key, by: i64) -> Result<Value> {
        let session = self.values().session().await?;
        let mut both = Pipeline::with_capacity(2);
        both.cmd("INCRBY").arg(self.keys.of_value(key)).arg(by);
        both.cmd("EXISTS").arg(self.keys.beside_value(key, "watch"));
        let mut answers = self.values().commands(&session, &mut both).await.map_err(explained)?.into_iter();
        let sum = answers.next().ok_or_else(odd)?.map_err(explained)?;
        if !matches!(answers.next(), Some(Ok(Value::Int(0)))) {
            let _ = self.ask(&CELL_TELL, key, &[]).await;
        }
        Ok(sum)
    }

    /// One attempt, on a connection that nobody else uses.
    async fn attempt(
        &self,
        wires: &Wires,
        key: &Key,
        plan: &mut Plan<'_>,
        is_known: bool,
    ) -> Result<Option<Changed>> {
        let mut deal = Deal::begin(wires).await?;
        let name = self.keys.of_value(key);
        let looked = deal.watch(&[&name], &[cmd("GET").arg(&name).take()]).await.map_err(explained)?;
        let there = match looked.into_iter().next() {
            Some(Ok(Value::BulkString(value))) => Some(value),
            Some(Ok(Value::Nil)) => None,
            Some(Err(error)) => return Err(explained(error)),
            _ => return Err(odd()),
        };
        let Some(Put { value, ttl }) = plan(there.as_deref()) else {
            deal.leave_unchanged().await;
            return Ok(Some(Changed::Left));
        };
        // It compares as well: a server on which `MULTI` is none would do this at once.
        let write = Write { when: there.map_or(When::Absent, When::Is), value, ttl };
        let mut command = if is_known {
            cmd("EVALSHA").arg(&CELL_WRITE.digest).take()
        } else {
            cmd("EVAL").arg(&CELL_WRITE.source).take()
        };
        with_args(&write, |args| self.write_args(&mut command, key, args));
        match deal.close(&[command]).await {
            Ok(done) => {
                deal.leave();
                match done.as_deref() {
                    None | Some([Value::Int(0)]) => Ok(Some(Changed::Overtaken)),
                    Some([Value::Int(1)]) => Ok(Some(Changed::Written)),
                    _ => Err(odd()),
                }
            }
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => Ok(None),
            Err(error) => Err(explained(error)),
        }
    }
}

/// The arguments of the script that writes.
fn with_args(write: &Write, then: impl FnOnce(&[&[u8]])) {
    let (fence, kept_ms) = match &write.when {
        When::Fenced { fence, kept_for } => {
            (format!("{:0FENCE_DIGITS$}", fence.get()), kept_for.as_ms().to_string())
        }
        _ => Default::default(),
    };
    let (when, is): (&str, &[u8]) = match &write.when {
        When::Always => ("always", b""),
        When::Absent => ("absent", b""),
        When::Is(value) => ("is", value),
        When::Fenced { .. } => ("fenced", fence.as_bytes()),
    };
    let (what, value): (&str, &[u8]) = match &write.value {
        Some(value) => ("set", value),
        None => ("remove", b""),
    };
    let ttl = ms(write.ttl);
    let args = [when.as_bytes(), is, what.as_bytes(), value, ttl.as_bytes(), kept_ms.as_bytes()];
    then(&args);
}

impl Cells {
    /// A read without a script, which takes the server a fifth of the time: how long it is still there, the value, and again how
    /// long. Where both agree they are the value's; `None` where somebody has written in between.
    async fn look(&self, key: &Key) -> Result<Option<Option<Kept>>> {
        let (session, key) = (self.values().session().await?, self.keys.of_value(key));
        let mut commands = Pipeline::with_capacity(3);
        commands.cmd("PTTL").arg(&key).cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let answers = self.values().commands(&session, &mut commands).await.map_err(explained)?;
        let answers: Vec<Value> = answers.into_iter().collect::<Result<_, _>>().map_err(explained)?;
        match <[Value; 3]>::try_from(answers) {
            Ok([_, Value::Nil, _]) => Ok(Some(None)),
            Ok([Value::Int(before), Value::BulkString(value), Value::Int(left)]) => {
                let is_its_own =
                    before == -1 && left == -1 || left >= 0 && (0..=AGREE_MS).contains(&(before - left));
                let remaining = u64::try_from(left).ok().map(Duration::from_millis);
                Ok(is_its_own.then_some(Some(Kept { value, remaining })))
            }
            _ => Err(odd()),
        }
    }
}

fn ms(ttl: Option<Ttl>) -> String {
    ttl.map(|ttl| ttl.as_ms().to_string()).unwrap_or_default()
}

#[async_trait]
impl CellStore for Cells {
    async fn read(&self, key: &Key) -> Result<Option<Kept>> {
        if let Some(kept) = self.look(key).await? {
            return Ok(kept);
        }
        let both = match self.ask(&CELL_READ, key, &[]).await? {
            Value::Nil => return Ok(None),
            Value::Array(both) => both,
            _ => return Err(odd()),
        };
        match <[Value; 2]>::try_from(both) {
            Ok([Value::BulkString(value), Value::Int(left)]) => {
                let remaining = u64::try_from(left).ok().map(Duration::from_millis);
                Ok(Some(Kept { value, remaining }))
            }
            _ => Err(odd()),
        }
    }

    async fn write(&self, key: &Key, write: &Write) -> Result<Written> {
        let session = self.values().session().await?;
        let answer = self.values().run(&session, &CELL_WRITE, |to| {
            with_args(write, |args| self.write_args(to, key, args));
        });
        let answer = answer.await.map_err(explained).map_err(|error| match error {
            Error::Refused { store, why } if why.contains("no fence") => {
                let why = format!("another program has overwritten `{{{key}}}:fence`; remove that key");
                Error::Refused { store, why }
            }
            error => error,
        });
        match answer? {
            Value::Int(1) => Ok(Written::Written),
            Value::Int(0) => Ok(Written::Not),
            newer => match text(&newer).parse() {
                Ok(fence) => Ok(Written::Stale(fence)),
                Err(_) => Err(odd()),
            },
        }
    }

    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64> {
        let sum = match ttl {
            None => self.add_plainly(key, by).await,
            ttl => self.ask(&CELL_ADD, key, &[by.to_string().as_bytes(), ms(ttl).as_bytes()]).await,
        };
        let sum = sum.map_err(|error| match error {
            Error::Refused { store, why } if why.contains("not an integer") || why.contains("WRONGTYPE") => {
                Error::Refused { store, why: format!("`{key}` is no number") }
            }
            Error::Refused { store, why } if why.contains("overflow") => {
                Error::Refused { store, why: format!("another {by} is more than `{key}` can hold") }
            }
            error => error,
        })?;
        text(&sum).parse().map_err(|_| odd())
    }

    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
        let Some(wires) = &self.wires else { return change_by_comparison(self, key, plan).await };
        if let Some(changed) = self.attempt(wires, key, plan, true).await? {
            return Ok(changed);
        }
        // The server has forgotten the script, and nothing has changed.
        self.attempt(wires, key, plan, false).await?.ok_or_else(odd)
    }

    async fn run(&self, source: &str, keys: &[ScriptKey], args: &[Vec<u8>]) -> Result<Answer> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.bytes(|key| self.keys.of_value(key))).collect();
        let session = self.values().session().await?;
        let script = Script::of(source.to_owned());
        let write = |to: &mut Cmd| {
            to.arg(keys.len()).arg(&keys).arg(args);
        };
        answer(self.values().run(&session, &script, write).await.map_err(explained)?)
    }

    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken> {
        let (script, args): (&Script, &[u64]) = match limit.algorithm() {
            Algorithm::FixedWindow => {
                (&RATE_FIXED, &[u64::from(weight), u64::from(limit.max()), limit.period_us() / 1_000])
            }
            Algorithm::SlidingWindow => {
                let (period_us, apart_us) = (limit.period_us(), limit.apart_us());
                (&RATE_SLIDING, &[u64::from(weight), u64::from(limit.max()), period_us, apart_us])
            }
            Algorithm::Gcra { burst } => (&RATE_GCRA, &[limit.cost_ns(weight), limit.cost_ns(burst)]),
        };
        let place = self.keys.of_value(&limit.place(key));
        let session = self.values().session().await?;
        let write = |to: &mut Cmd| {
            to.arg(1).arg(&place).arg(args);
        };
        let answer = self.values().run(&session, script, write).await.map_err(explained);
        let answer = answer.map_err(|error| match error {
            Error::Refused { store, why } if why.contains("no rate limit") || why.contains("wrong kind") => {
                let why = format!("`{place}` is no rate limit; something else is kept under its name");
                Error::Refused { store, why }
            }
            error => error,
        })?;
        let Value::Array(told) = answer else { return Err(odd()) };
        match told[..] {
            [Value::Int(allowed), Value::Int(used), Value::Int(retry_us), Value::Int(reset_us)] => {
                let [used, retry_us, reset_us] =
                    [used, retry_us, reset_us].map(|number| u64::try_from(number).unwrap_or(0));
                Ok(limit.taken(allowed == 1, used, retry_us, reset_us))
            }
            _ => Err(odd()),
        }
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let known = from.map(|value| sha1_smol::Sha1::from(value).digest().to_string()).unwrap_or_default();
        let (watch, watched_for) =
            (self.watchers.watch(self.keys.of_value(key)), WATCHED_FOR.as_millis().to_string());
        let mut poll = POLL_MIN;
        loop {
            let mut rung = pin!(watch.notified());
            // Listens first and looks then.
            rung.as_mut().enable();
            // What was pushed over a connection that is lost was not heard.
            let session = self.link.session().await?;
            let args = [known.as_bytes(), self.channel.as_bytes(), watched_for.as_bytes()];
            let left = match self.ask(&CELL_WATCH, key, &args).await? {
                Value::Int(-1) => return Ok(()),
                Value::Int(0) => Duration::MAX,
                Value::Int(left) => Duration::from_millis(left.unsigned_abs()),
                _ => return Err(odd()),
            };
            let now = self.clock.now();
            if now >= until {
                return Ok(());
            }
            let mut pause = LOOK_EVERY;
            if self.channel.is_empty() {
                pause = poll;
                poll = (poll * 2).min(POLL_MAX);
            }
            tokio::select! {
                biased;
                () = rung => {}
                () = self.link.newer_than(session.generation) => {}
                () = self.clock.sleep_until(now.plus(pause.min(left)).min(until)) => {}
            }
        }
    }
}

fn answer(value: Value) -> Result<Answer> {
    Ok(match value {
        Value::Nil => Answer::Nothing,
        Value::Int(number) => Answer::Number(number),
        Value::Boolean(yes) => Answer::Number(i64::from(yes)),
        Value::BulkString(bytes) => Answer::Bytes(bytes),
        Value::Double(number) => Answer::Bytes(number.to_string().into_bytes()),
        Value::Okay | Value::SimpleString(_) => Answer::Bytes(text(&value).into_bytes()),
        Value::Array(values) => Answer::List(values.into_iter().map(answer).collect::<Result<_>>()?),
        _ => return Err(odd()),
    })
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cells").finish_non_exhaustive()
    }
}
