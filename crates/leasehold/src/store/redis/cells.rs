//! Values on the server, each under a key of its own that other programs can read and write.

use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, Value};

use super::link::{Link, explained};
use super::reply::{odd, text};
use super::script::{
    CELL_ADD, CELL_READ, CELL_WATCH, CELL_WRITE, RATE_FIXED, RATE_GCRA, RATE_SLIDING, Script,
};
use super::{POLL_MAX, POLL_MIN};
use crate::cells::rate::{Algorithm, Limit, Taken};
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
            to.arg(2).arg(key.to_string()).arg(format!("{{{key}}}:watch")).arg(args);
        };
        self.link.run(&session, script, write).await.map_err(explained)
    }
}

fn ms(ttl: Option<Ttl>) -> String {
    ttl.map(|ttl| ttl.as_ms().to_string()).unwrap_or_default()
}

#[async_trait]
impl CellStore for Cells {
    async fn read(&self, key: &Key) -> Result<Option<Kept>> {
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
        let (when, is): (&str, &[u8]) = match &write.when {
            When::Always => ("always", b""),
            When::Absent => ("absent", b""),
            When::Is(value) => ("is", value),
        };
        let (what, value): (&str, &[u8]) = match &write.value {
            Some(value) => ("set", value),
            None => ("remove", b""),
        };
        let (ttl, told) = (ms(write.ttl), format!("{CHANGED}{key}"));
        let args = [when.as_bytes(), is, what.as_bytes(), value, ttl.as_bytes(), told.as_bytes()];
        match self.run(&CELL_WRITE, key, &args).await? {
            Value::Int(1) => Ok(Written::Written),
            Value::Int(0) => Ok(Written::Not),
            _ => Err(odd()),
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
        let place = limit.place(key);
        let session = self.link.session().await?;
        let write = |to: &mut Cmd| {
            to.arg(1).arg(&place).arg(args);
        };
        let answer = self.link.run(&session, script, write).await.map_err(explained);
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
