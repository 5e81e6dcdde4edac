//! Values on the server, each under a key of its own that other programs can read and write.

use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, Value};

use super::link::{Link, explained};
use super::reply::{odd, text};
use super::script::{CELL_ADD, CELL_READ, CELL_WATCH, CELL_WRITE, Script};
use super::{POLL_MAX, POLL_MIN};
use crate::cells::store::{CellStore, Kept, Key, When, Write, Written};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::store::watchers::Watchers;
use crate::sync::Arc;
use crate::ttl::Ttl;

/// What stands before the key of a value in what watchers are told. No token of a lock begins so.
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
    link: Arc<Link>,
    clock: Clock,
    watchers: Arc<Watchers>,
    /// Nothing where nobody listens.
    channel: String,
}

impl Cells {
    pub(super) fn new(link: Arc<Link>, clock: Clock, watchers: Arc<Watchers>, channel: String) -> Self {
        Cells { link, clock, watchers, channel }
    }

    async fn run(&self, script: &Script, key: &Key, args: &[&[u8]]) -> Result<Value> {
        let session = self.link.session().await?;
        let write = |to: &mut Cmd| {
            to.arg(3).arg(key.to_string());
            to.arg(format!("{{{key}}}:watch")).arg(format!("{{{key}}}:fence")).arg(args);
        };
        self.link.run(&session, script, write).await.map_err(explained)
    }
}

impl Cells {
    /// A read without a script, which takes the server a fifth of the time: how long it is still there, the value, and again how
    /// long. Where both agree they are the value's; `None` where somebody has written in between.
    async fn look(&self, key: &Key) -> Result<Option<Option<Kept>>> {
        let (session, key) = (self.link.session().await?, key.to_string());
        let mut commands = redis::pipe();
        commands.cmd("PTTL").arg(&key).cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let answers = self.link.commands(&session, &commands).await.map_err(explained)?;
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
        let both = match self.run(&CELL_READ, key, &[]).await? {
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
        let (ttl, told) = (ms(write.ttl), format!("{CHANGED}{key}"));
        let args = [when.as_bytes(), is, what.as_bytes(), value, ttl.as_bytes(), told.as_bytes()];
        let args = [&args[..], &[kept_ms.as_bytes()]].concat();
        match self.run(&CELL_WRITE, key, &args).await? {
            Value::Int(1) => Ok(Written::Written),
            Value::Int(0) => Ok(Written::Not),
            newer => match text(&newer).parse() {
                Ok(fence) => Ok(Written::Stale(fence)),
                Err(_) => Err(odd()),
            },
        }
    }

    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64> {
        let (by, ttl, told) = (by.to_string(), ms(ttl), format!("{CHANGED}{key}"));
        let answer = self.run(&CELL_ADD, key, &[by.as_bytes(), ttl.as_bytes(), told.as_bytes()]).await;
        let sum = answer.map_err(|error| match error {
            Error::Refused { store, why } if why.contains("not an integer") || why.contains("wrong kind") => {
                Error::Refused { store, why: format!("`{key}` is no number") }
            }
            Error::Refused { store, why } if why.contains("overflow") => {
                Error::Refused { store, why: format!("another {by} is more than `{key}` can hold") }
            }
            error => error,
        })?;
        text(&sum).parse().map_err(|_| odd())
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let known = from.map(|value| sha1_smol::Sha1::from(value).digest().to_string()).unwrap_or_default();
        let (watch, watched_for) = (self.watchers.watch(key), WATCHED_FOR.as_millis().to_string());
        let mut poll = POLL_MIN;
        loop {
            let mut rung = pin!(watch.rung());
            // Listens first and looks then.
            rung.as_mut().enable();
            let session = self.link.session().await?;
            let args = [known.as_bytes(), self.channel.as_bytes(), watched_for.as_bytes()];
            let left = match self.run(&CELL_WATCH, key, &args).await? {
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

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cells").finish_non_exhaustive()
    }
}
