//! Whether a server is fit for locks: what `leasehold doctor` says of `redis:`. Here it is asked; `judge` says what the
//! answers mean, `rights` tries what this user may do.
//!
//! On a connection of its own, so that a server on which no lock can be taken can still say why.

mod judge;
mod rights;

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisError, cmd};

use super::address::Address;
use super::link::{Link, explained};
use super::reply::fence_read;
use super::{open_with, settings};
use crate::clock::Clock;
use crate::doctor::{Finding, median, not_taken, tried};
use crate::error::Result;
use crate::password::Password;

/// How often the server is asked for its time.
const TIMES: usize = 9;

/// What is asked of `CONFIG GET`. Not all there is: passwords are among it.
const CONFIGURED: [&str; 7] =
    ["appendfsync", "save", "min-replicas-to-write", "timeout", "tcp-keepalive", "protected-mode", "bind"];

/// What a server says of itself, by names.
type Said = BTreeMap<String, String>;

/// All that was found out, as far as this user may see it.
#[derive(Debug, Default)]
struct Facts {
    /// `INFO`.
    info: Option<Said>,
    /// `CONFIG GET`.
    config: Option<Said>,
    /// By how much the server's wall clock is ahead of ours, in µs, and the round trip.
    clock: Option<(i64, Duration)>,
    /// By how much the last fence is ahead of the server's clock, in µs; no fence at all; or what stands there instead.
    fence: Option<Result<Option<i64>, String>>,
    /// How long a request may take.
    timeout: Duration,
}

/// One node of several, as far as it can be judged by itself.
pub(in crate::store) struct Examined {
    pub(in crate::store) findings: Vec<Finding>,
    /// By how much its wall clock is ahead of ours, in µs, and the round trip.
    pub(in crate::store) clock: Option<(i64, Duration)>,
    /// Which server it is, where this user may see it.
    pub(in crate::store) run_id: Option<String>,
}

impl Examined {
    pub(in crate::store) async fn new(address: &Address, timeout: Duration) -> Result<Self> {
        let mut server = Patient::meet(address, timeout).await?;
        let clock = server.clock(&Clock::system()?).await;
        let (info, config) = (server.info().await, server.configuration().await);
        let run_id = info.as_ref().and_then(|info| info.get("run_id").cloned());
        let facts = Facts { info, config, clock, fence: Some(Ok(None)), timeout };
        let mut findings = judge::all(&facts);
        findings.push(judge::network(&address.info, facts.config.as_ref()));
        Ok(Examined { findings, clock, run_id })
    }
}

pub(crate) async fn examine(url: &str, password: Option<&Password>) -> Result<Vec<Finding>> {
    let (place, settings) = settings(url)?;
    let address = Address::new(&place, password, &settings.files)?;
    let met = Patient::meet(&address, settings.timeout).await;
    let mut server = met.map_err(|error| address.located(error))?;
    let clock = Clock::system()?;
    let facts = Facts {
        info: server.info().await,
        config: server.configuration().await,
        clock: server.clock(&clock).await,
        fence: server.fence(&format!("{{{}}}:fence", settings.prefix)).await,
        timeout: settings.timeout,
    };
    let mut findings = judge::all(&facts);
    findings.push(judge::network(&address.info, facts.config.as_ref()));
    findings.extend(rights::all(&mut server, &settings.prefix, settings.scripts).await);
    findings.push(match open_with(url, password).await {
        Ok(store) => tried(&*store).await,
        Err(error) => not_taken(&error),
    });
    Ok(findings)
}

/// What is worth a warning before the first lock is taken: a server that may throw locks away. One who may not look is told
/// nothing; `doctor` says more.
pub(super) async fn eviction(link: &Link) -> Option<String> {
    let session = link.session().await.ok()?;
    let answer = link.command(&session, cmd("INFO").arg("memory")).await.ok()?;
    let info = sections(&String::from_redis_value(answer).ok()?);
    judge::eviction(&info)
}

fn sections(text: &str) -> Said {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.to_owned(), value.trim_end().to_owned())).collect()
}

/// The server under examination.
struct Patient {
    connection: MultiplexedConnection,
}

impl Patient {
    async fn meet(address: &Address, timeout: Duration) -> Result<Self> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout));
        let connection = address.client()?.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| address.explained(error))?;
        let mut server = Patient { connection };
        // What does not answer at all is not examined, but reported as it is everywhere else.
        server.ask::<redis::Value>(&cmd("PING")).await.or_else(|error| match error.is_io_error() {
            true => Err(explained(error)),
            false => Ok(redis::Value::Nil),
        })?;
        Ok(server)
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection).await
    }

    async fn info(&mut self) -> Option<Said> {
        let text: String = self.ask(&cmd("INFO")).await.ok()?;
        Some(sections(&text))
    }

    async fn configuration(&mut self) -> Option<Said> {
        self.ask(cmd("CONFIG").arg("GET").arg(&CONFIGURED)).await.ok()
    }

    async fn time_us(&mut self) -> Option<u64> {
        let (seconds, micros): (u64, u64) = self.ask(&cmd("TIME")).await.ok()?;
        Some(seconds.saturating_mul(1_000_000).saturating_add(micros))
    }

    async fn clock(&mut self, clock: &Clock) -> Option<(i64, Duration)> {
        let mut round_trips = Vec::new();
        let mut best: Option<(Duration, i64)> = None;
        for _ in 0..TIMES {
            let (sent, sent_us) = (clock.now(), Clock::wall_us());
            let server_us = self.time_us().await?;
            let round_trip = clock.now().since(sent);
            // The server read its clock somewhere on the way: the shorter that was, the surer one can be.
            let ours = sent_us.saturating_add(u64::try_from(round_trip.as_micros() / 2).unwrap_or(0));
            let ahead_us = difference(server_us, ours);
            if best.is_none_or(|(shortest, _)| round_trip < shortest) {
                best = Some((round_trip, ahead_us));
            }
            round_trips.push(round_trip);
        }
        best.map(|(_, ahead_us)| (ahead_us, median(&mut round_trips)))
    }

    async fn fence(&mut self, key: &str) -> Option<Result<Option<i64>, String>> {
        let last: Option<String> = match self.ask(cmd("GET").arg(key)).await {
            Ok(last) => last,
            Err(error) if error.code() == Some("WRONGTYPE") => {
                return Some(Err("a key of another type".to_owned()));
            }
            Err(_) => return None,
        };
        let Some(last) = last else { return Some(Ok(None)) };
        let now = self.time_us().await?;
        Some(match fence_read(&last) {
            Some(last) => Ok(Some(difference(last.get(), now))),
            None => Err("something that is no number".to_owned()),
        })
    }
}

/// By how much the first is ahead of the second.
fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}
