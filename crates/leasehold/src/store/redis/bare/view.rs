//! What is only looked at: who holds a name, and who waits for it by scripts.

use redis::{Pipeline, RedisError, Value};

use super::super::reply::{self, foreign, text};
use super::super::{SCANNED, name_in, patterns};
use super::Bare;
use super::deal::{Held, Trouble, held, integer, time_us};
use super::wires::Call;
use crate::claim::Status;
use crate::error::Result;
use crate::name::Name;

/// One who stands in line, as the scripts have written it down.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) token: String,
    share: String,
    channel: String,
    arrival: u64,
}

/// Those who stand in line up to this place (-1 is the last), and have to show themselves some time later than now.
pub(super) async fn line(call: &mut Call<'_>, key: &str, to: i64) -> Result<Vec<Waiting>, RedisError> {
    let mut commands = Pipeline::new();
    let line = format!("{{{key}}}:line");
    commands.cmd("LRANGE").arg(line).arg(0).arg(to).cmd("TIME");
    let mut answers = call.ask(&mut commands).await?.into_iter();
    let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
    let (Value::Array(tokens), now_us) = (next()?, time_us(&next()?)) else { return Ok(Vec::new()) };
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    let tokens: Vec<String> = tokens.iter().map(text).collect();
    let mut commands = Pipeline::new();
    commands.cmd("HMGET").arg(format!("{{{key}}}:wait")).arg(&tokens);
    let mut answers = call.ask(&mut commands).await?;
    let Some(Value::Array(entries)) = answers.pop().transpose()? else { return Ok(Vec::new()) };
    let waiting = tokens.into_iter().zip(&entries).filter_map(|(token, entry)| {
        let entry = text(entry);
        let mut fields = entry.split('\n');
        let share = fields.next()?.to_owned();
        let shows_until_ms: u64 = fields.nth(3)?.parse().ok()?;
        let channel = fields.nth(1)?.to_owned();
        let arrival = fields.next().and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        (shows_until_ms > now_us / 1_000).then_some(Waiting { token, share, channel, arrival })
    });
    Ok(waiting.collect())
}

/// Has the first in line look at once: nothing is handed to it, and it would not know until its next look. Where that does
/// not work, its look does.
pub(super) async fn tell_first(call: &mut Call<'_>, key: &str) -> Result<(), RedisError> {
    let first = line(call, key, 0).await?.pop().filter(|first| !first.channel.is_empty());
    if let Some(Waiting { token, channel, .. }) = first {
        let mut commands = Pipeline::new();
        commands.cmd("PUBLISH").arg(channel).arg(token);
        call.ask(&mut commands).await?;
    }
    Ok(())
}

/// The holders of a key that is no string, each with what is left of it in ms; an error for a key that is no lock at all.
pub(super) async fn several(call: &mut Call<'_>, key: &str) -> Result<Vec<Value>, Trouble> {
    let mut commands = Pipeline::new();
    commands.cmd("TYPE").arg(key).cmd("TIME").cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES");
    let mut answers = call.ask(&mut commands).await?.into_iter();
    let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
    let (kind, now_us) = (text(&next()?), time_us(&next()?));
    let members = match (kind.as_str(), next()) {
        ("zset", Ok(Value::Array(members))) => members,
        // It has become one since.
        ("none" | "string", _) => return Ok(Vec::new()),
        ("zset", Err(error)) => return Err(error.into()),
        _ => return Err(foreign(key, &kind).into()),
    };
    let mut found = Vec::new();
    for member in members {
        let Value::Array(pair) = member else { continue };
        let [member, Value::Double(end_ms)] = pair.as_slice() else { continue };
        if !reply::is_member(&text(member)) {
            return Err(foreign(key, &kind).into());
        }
        let left_ms = (*end_ms - (now_us / 1_000) as f64).max(0.0) as i64;
        found.extend([member.clone(), Value::Int(left_ms)]);
    }
    Ok(found)
}

impl Bare {
    pub(super) async fn see(&self, name: &Name) -> Result<Option<Status>, Trouble> {
        let key = self.key(name);
        let mut call = self.wires.call().await?;
        let mut commands = Pipeline::new();
        commands.cmd("GET").arg(&key).cmd("PTTL").arg(&key).cmd("TIME");
        let mut answers = call.look(&mut commands).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let (held, left_ms) = (held(next())?, integer(&next()?));
        let now_us = time_us(&next()?);
        let holders = match held {
            // Gone between the two.
            Held::Alone(_) if left_ms == GONE => Vec::new(),
            Held::Alone(value) => vec![Value::BulkString(value.into_bytes()), Value::Int(left_ms)],
            Held::Nobody => Vec::new(),
            // What is no lock has no holders, here as for the scripts.
            Held::Several => match several(&mut call, &key).await {
                Err(Trouble { error: crate::Error::Refused { .. }, is_passing: false }) => Vec::new(),
                found => found?,
            },
        };
        let waiting = line(&mut call, &key, -1).await?;
        call.done();
        let bulk = |text: String| Value::BulkString(text.into_bytes());
        let arrivals: Vec<u64> = waiting.iter().map(|it| it.arrival).collect();
        let waiters: Vec<Value> =
            waiting.into_iter().flat_map(|it| [bulk(it.token), bulk(it.share)]).collect();
        let (mut holders, mut waiters) = (reply::holders(&holders), reply::waiters(&waiters));
        reply::date(&mut holders, &mut waiters, now_us, arrivals);
        let is_used = !holders.is_empty() || !waiters.is_empty();
        Ok(is_used.then(|| Status { name: name.clone(), holders, waiters }))
    }

    /// The names of the keys that match, whether held or only waited for.
    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<Name>, Trouble> {
        let own = &self.settings.prefix;
        let mut names = Vec::new();
        let mut call = self.wires.call().await?;
        for pattern in patterns(own, prefix) {
            let mut cursor = "0".to_owned();
            loop {
                let mut commands = Pipeline::new();
                commands.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED);
                let answer = call.look(&mut commands).await?.pop().unwrap_or(Ok(Value::Nil))?;
                let found = reply::Reply::new(answer)?;
                names.extend(found.list(1).iter().filter_map(|key| name_in(own, &text(key))));
                cursor = found.text(0);
                if cursor == "0" {
                    break;
                }
            }
        }
        call.done();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// What `PTTL` says of a key that is not there.
pub(super) const GONE: i64 = -2;
