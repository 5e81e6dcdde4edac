//! What requests go over: a connection of our own, or one that somebody else made and looks after.

use std::io;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};

use super::ears::Ears;
use super::left::Left;
use super::link::Link;
use super::{Redis, doctor, settings};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::sync::Arc;

impl Redis {
    /// Opens it over a connection of your own: one that many can use at the same time, such as
    /// `redis::aio::MultiplexedConnection`, or better `redis::aio::ConnectionManager`, which comes back by itself when it
    /// breaks. `parameters` are those of [`open`](Redis::open) but for TLS, as in `prefix=jobs:&timeout=500`, or nothing.
    ///
    /// Nobody is told of its turn on such a connection: whoever waits asks, at least every 100 ms (see
    /// [`Capabilities::pushed`](crate::Capabilities::pushed)). It must lead to one server, and never send a request twice by
    /// itself.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use leasehold::{Options, store::redis::Redis};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let connection = client.get_multiplexed_async_connection().await?;
    /// let store = Redis::with_connection(connection, "prefix=jobs:").await?;
    /// let locks = Options::default().over(Arc::new(store))?;
    /// # drop(locks); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`open`](Redis::open).
    ///
    /// # Cancel safety
    /// Dropped before its end, there is no store, and nothing stays behind.
    pub async fn with_connection<C>(connection: C, parameters: &str) -> Result<Self>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let refuse = |why: &str| Err(Error::invalid("parameters of the store", parameters, why));
        let (rest, settings) = match parameters {
            "" => settings("given:")?,
            _ => settings(&format!("given:?{parameters}"))?,
        };
        if rest != "given:" {
            return refuse("write NAME=VALUE&NAME=VALUE, with names as in a store URL");
        } else if settings.files.check(false).is_err() {
            return refuse("TLS is the affair of whoever made the connection; leave it out");
        }
        let clock = Clock::system()?;
        let wire = Wire::given(connection, clock.clone(), settings.timeout);
        let link = Link::over(wire, clock.clone(), settings.timeout).await?;
        if let Some(warning) = doctor::eviction(&link).await {
            tracing::warn!("{warning}");
        }
        let ears = Ears::new(Left::new().0, &settings.prefix);
        Ok(Redis::over(Arc::new(link), ears, clock, settings, String::new(), None))
    }
}

#[derive(Clone)]
pub(super) enum Wire {
    Own(MultiplexedConnection),
    Given(Given),
}

/// Somebody else's connection. It may have a patience of its own, or none at all: ours is what a request may take.
pub(super) struct Given {
    connection: Box<dyn Shared>,
    clock: Clock,
    timeout: Duration,
}

/// A connection that many can use at the same time, each by a copy.
trait Shared: ConnectionLike + Send + Sync {
    fn copy(&self) -> Box<dyn Shared>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared for C {
    fn copy(&self) -> Box<dyn Shared> {
        Box::new(self.clone())
    }
}

impl Wire {
    pub(super) fn given<C>(connection: C, clock: Clock, timeout: Duration) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Wire::Given(Given { connection: Box::new(connection), clock, timeout })
    }
}

impl Clone for Given {
    fn clone(&self) -> Self {
        Given { connection: self.connection.copy(), clock: self.clock.clone(), timeout: self.timeout }
    }
}

/// With an end in any case.
fn in_time<'a, T: Send + 'a>(
    clock: &'a Clock,
    timeout: Duration,
    answer: RedisFuture<'a, T>,
) -> RedisFuture<'a, T> {
    let until = clock.now().plus(timeout);
    Box::pin(async move {
        let answer = clock.until(until, answer).await;
        answer.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    })
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Wire::Own(connection) => connection.req_packed_command(command),
            Wire::Given(Given { connection, clock, timeout }) => {
                in_time(clock, *timeout, connection.req_packed_command(command))
            }
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Wire::Own(connection) => connection.req_packed_commands(pipeline, offset, count),
            Wire::Given(Given { connection, clock, timeout }) => {
                in_time(clock, *timeout, connection.req_packed_commands(pipeline, offset, count))
            }
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Wire::Own(connection) => connection.get_db(),
            Wire::Given(given) => given.connection.get_db(),
        }
    }
}
