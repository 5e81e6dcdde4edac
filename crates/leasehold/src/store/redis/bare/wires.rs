//! Connections of which each is used by one at a time: what is watched is watched by a connection, and must be nobody else's.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, PushInfo, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError, unbounded_channel};

use super::super::address::Address;
use super::super::link::{Link, Maker};
use super::slots::{Slot, Slots};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// The most that a client uses at a time. There may be more, of futures that are not polled.
const WIRES_MAX: usize = 4;

/// The connections of a client: made when they are needed, and kept.
pub(in crate::store::redis) struct Wires {
    address: Address,
    timeout: Duration,
    idle: Mutex<Vec<Wire>>,
    slots: Slots,
}

struct Wire {
    connection: MultiplexedConnection,
    /// Says when the other end has closed it.
    pushes: UnboundedReceiver<PushInfo>,
}

/// A connection in use.
///
/// It goes back only when it is [`done`](Call::done): whoever is dropped between two messages leaves no transaction begun and
/// nothing watched, since the connection ends with it.
pub(in crate::store::redis) struct Call<'a> {
    wires: &'a Wires,
    wire: Wire,
    /// Whether nothing has been heard on it since somebody else used it.
    is_kept: bool,
    slot: Slot<'a>,
}

impl Wires {
    /// Connects once, so that what is wrong is known at once.
    pub(super) async fn open(address: Address, clock: Clock, timeout: Duration) -> Result<Self> {
        let wires = Wires::new(address, clock, timeout);
        wires.call().await?.done();
        Ok(wires)
    }

    /// Connects when the first is needed.
    pub(in crate::store::redis) fn new(address: Address, clock: Clock, timeout: Duration) -> Self {
        let slots = Slots::new(WIRES_MAX, clock, timeout);
        Wires { address, timeout, idle: Mutex::default(), slots }
    }

    /// A connection of the same kind that many use at the same time; made on this runtime, in the background.
    pub(in crate::store::redis) fn shared(&self, clock: &Clock) -> Link {
        Link::start(Maker::for_values(self.address.clone(), clock.clone(), self.timeout))
    }

    /// A connection for one; waits for it as long as a request may take.
    pub(super) async fn call(&self) -> Result<Call<'_>> {
        let slot = self.slots.take().await.ok_or_else(no_answer)?;
        let (wire, is_kept) = match self.kept() {
            Some(wire) => (wire, true),
            None => (self.make().await?, false),
        };
        Ok(Call { wires: self, wire, is_kept, slot })
    }

    /// One that was used before, and that the server has not closed since.
    fn kept(&self) -> Option<Wire> {
        let mut idle = lock(&self.idle);
        while let Some(mut wire) = idle.pop() {
            if matches!(wire.pushes.try_recv(), Err(TryRecvError::Empty)) {
                return Some(wire);
            }
        }
        None
    }

    async fn make(&self) -> Result<Wire> {
        let (pushed, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_push_sender(pushed);
        let made = self.address.client()?.get_multiplexed_async_connection_with_config(&config).await;
        let connection = made.map_err(|error| self.address.explained(error))?;
        Ok(Wire { connection, pushes })
    }
}

impl Call<'_> {
    /// Sends all of it in one go. Each command has its own answer; an error of the whole is that there is none.
    pub(super) async fn ask(
        &mut self,
        commands: &mut Pipeline,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        self.slot.show();
        let answers = commands.ignore_errors().query_async(&mut self.wire.connection).await;
        self.is_kept &= answers.is_err();
        answers
    }

    /// The same for what changes nothing: it is sent again where the connection turns out to have been closed while nobody
    /// used it.
    pub(super) async fn look(
        &mut self,
        commands: &mut Pipeline,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        match self.ask(commands).await {
            Err(error) if self.is_kept && !error.is_timeout() => {
                self.wire = self.wires.make().await.map_err(|_| error)?;
                self.ask(commands).await
            }
            answers => answers,
        }
    }

    /// Gives it back for others to use.
    pub(super) fn done(self) {
        let mut idle = lock(&self.wires.idle);
        if idle.len() < WIRES_MAX {
            idle.push(self.wire);
        }
    }
}

fn no_answer() -> Error {
    Error::Unreachable { store: "redis", why: "no answer in time to what was asked before".to_owned() }
}
