//! A deal: keys are watched and looked at, and what is changed after that is changed only if nobody was faster.
//!
//! What a request has looked at is watched from before the look, and its change is sent only after the answer. So whatever
//! touches one of these keys makes sure that a change which is still under way does not happen.

use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, cmd};

use super::super::link::{explained, is_passing};
use super::super::reply::text;
use super::wires::{Call, Wires};
use crate::error::{Error, Result};

/// One that is under way. Dropped, nothing is changed, unless its last word has been sent.
pub(in crate::store::redis) struct Deal<'a> {
    pub(super) call: Call<'a>,
}

/// Why there is no answer, and whether there will be one later.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) error: Error,
    pub(super) is_passing: bool,
}

/// Who is at a main key.
#[derive(Debug)]
pub(super) enum Held {
    Nobody,
    Alone(String),
    /// No string: readers or permits, or something else altogether.
    Several,
}

/// What a main key is like, and what else is needed to decide on it.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) held: Held,
    /// What is left of it in ms; below zero where it has no end.
    pub(super) left_ms: i64,
    /// The highest fence given; zero where none is known.
    pub(super) last: u64,
    /// What was read of that.
    pub(super) last_text: Option<String>,
    /// The server's clock.
    pub(super) now_us: u64,
    /// How many stand in line, dead or alive.
    pub(super) waiters: usize,
}

impl<'a> Deal<'a> {
    pub(in crate::store::redis) async fn begin(wires: &'a Wires) -> Result<Self> {
        Ok(Deal { call: wires.call().await? })
    }

    /// Watches these keys, and looks; what was watched on this connection before is not any more.
    pub(in crate::store::redis) async fn watch(
        &mut self,
        keys: &[&str],
        looks: &[Cmd],
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let mut commands = Pipeline::with_capacity(looks.len() + 2);
        commands.cmd("UNWATCH").cmd("WATCH").arg(keys);
        for look in looks {
            commands.add_command(look.clone());
        }
        let mut answers = self.call.look(&mut commands).await?.into_iter();
        // Without these two, no look is worth anything.
        for answer in answers.by_ref().take(2) {
            answer?;
        }
        Ok(answers.collect())
    }

    /// Looks at one main key, with all that goes with it. Whoever gives or withdraws something also watches the highest fence,
    /// which rises with every grant of this server.
    pub(super) async fn look(
        &mut self,
        last: &str,
        key: &str,
        watches_last: bool,
    ) -> Result<Sight, RedisError> {
        let line = format!("{{{key}}}:line");
        let looks = [
            cmd("GET").arg(key).take(),
            cmd("PTTL").arg(key).take(),
            cmd("GET").arg(last).take(),
            cmd("TIME"),
            cmd("LLEN").arg(line).take(),
        ];
        let watched = if watches_last { &[key, last][..] } else { &[key] };
        let mut answers = self.watch(watched, &looks).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let held = held(next())?;
        let left_ms = integer(&next()?);
        let last_text = match next()? {
            Value::Nil => None,
            value => Some(text(&value)),
        };
        let last = last_text.as_deref().and_then(|last| u64::from_str_radix(last, 16).ok()).unwrap_or(0);
        let now_us = time_us(&next()?);
        let waiters = usize::try_from(integer(&next()?)).unwrap_or(0);
        Ok(Sight { held, left_ms, last, last_text, now_us, waiters })
    }

    /// Changes this, all of it or nothing; nothing where somebody was faster, which is the answer `None`. Also what was only
    /// looked at is proven by it.
    pub(in crate::store::redis) async fn close(
        &mut self,
        changes: &[Cmd],
    ) -> Result<Option<Vec<Value>>, RedisError> {
        let mut commands = Pipeline::with_capacity(changes.len() + 2);
        commands.cmd("MULTI");
        for change in changes {
            commands.add_command(change.clone());
        }
        commands.cmd("EXEC");
        let mut end = Value::Nil;
        // What the server refuses it refuses before the end, which then says no more than that it is none.
        for answer in self.call.ask(&mut commands).await? {
            end = answer?;
        }
        match end.extract_error()? {
            Value::Array(done) => Ok(Some(done)),
            Value::Nil => Ok(None),
            _ => Err(RedisError::from((ErrorKind::UnexpectedReturnType, "its answer makes no sense"))),
        }
    }

    /// Nothing is watched any more, and the connection is free for others.
    pub(in crate::store::redis) async fn leave_unchanged(mut self) {
        // Where that is not certain, it is closed.
        if let Ok(answers) = self.call.ask(Pipeline::new().cmd("UNWATCH")).await
            && answers.iter().all(Result::is_ok)
        {
            self.leave();
        }
    }

    /// The connection is free for others. Not to be called after an error: then it is closed.
    pub(in crate::store::redis) fn leave(self) {
        self.call.done();
    }
}

/// What `GET` says.
pub(super) fn held(answer: Result<Value, RedisError>) -> Result<Held, RedisError> {
    match answer {
        Ok(Value::Nil) => Ok(Held::Nobody),
        Ok(value) => Ok(Held::Alone(text(&value))),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(Held::Several),
        Err(error) => Err(error),
    }
}

pub(super) fn integer(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        _ => 0,
    }
}

/// What `TIME` says, in µs.
pub(super) fn time_us(value: &Value) -> u64 {
    let Value::Array(parts) = value else { return 0 };
    let part = |at: usize| parts.get(at).and_then(|part| text(part).parse::<u64>().ok()).unwrap_or(0);
    part(0).saturating_mul(1_000_000).saturating_add(part(1))
}

/// Whether a server refuses a command altogether, or does not know it.
pub(super) fn is_refused(error: &RedisError) -> bool {
    let said = error.detail().unwrap_or_default();
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || said.contains("unknown command")
        || said.contains("syntax error")
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Self {
        Trouble { is_passing: is_passing(&error), error: explained(error) }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble { error, is_passing: false }
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        trouble.error
    }
}
