//! What the connections of a proxy share with whoever holds it: how it flows, the tricks that are armed, the counts.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::fault::{Counts, Dice, Flow, Toward, Trick};
use crate::frame;

#[derive(Debug)]
pub(super) struct Hub {
    flows: watch::Sender<Flows>,
    desk: Mutex<Desk>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flows {
    server: Flow,
    client: Flow,
}

#[derive(Debug)]
struct Desk {
    /// In the order in which they were armed, each with the command it waits for.
    tricks: VecDeque<(Option<String>, Trick)>,
    counts: Counts,
    dice: [Dice; 2],
}

impl Hub {
    pub(super) fn new() -> Self {
        let desk = Desk { tricks: VecDeque::new(), counts: Counts::default(), dice: [Dice(0), Dice(0)] };
        Hub { flows: watch::Sender::default(), desk: Mutex::new(desk) }
    }

    pub(super) fn set(&self, toward: Toward, flow: Flow) {
        if let Flow::Jitter { seed, .. } = flow {
            self.desk().dice[toward as usize] = Dice(seed);
        }
        self.flows.send_modify(|flows| match toward {
            Toward::Server => flows.server = flow,
            Toward::Client => flows.client = flow,
        });
    }

    pub(super) fn flows(&self) -> watch::Receiver<Flows> {
        self.flows.subscribe()
    }

    /// By how much something is late that goes this way, if it is.
    pub(super) fn delay(&self, toward: Toward, flow: Flow) -> Option<Duration> {
        match flow {
            Flow::Delay(by) => Some(by),
            Flow::Jitter { least, most, .. } => Some(self.desk().dice[toward as usize].between(least, most)),
            Flow::Pass | Flow::Hold | Flow::Swallow => None,
        }
    }

    pub(super) fn arm(&self, command: Option<String>, trick: Trick) {
        self.desk().tricks.push_back((command, trick));
    }

    pub(super) fn disarm(&self) {
        self.desk().tricks.clear();
    }

    pub(super) fn armed(&self) -> usize {
        self.desk().tricks.len()
    }

    pub(super) fn counts(&self) -> Counts {
        self.desk().counts.clone()
    }

    pub(super) fn count(&self, counted: impl FnOnce(&mut Counts)) {
        counted(&mut self.desk().counts);
    }

    /// Counts a request, and says what is to be done to it.
    pub(super) fn request(&self, command: &str) -> Option<Trick> {
        let mut desk = self.desk();
        desk.counts.requests += 1;
        *desk.counts.commands.entry(command.to_owned()).or_default() += 1;
        if is_subscription(command) {
            return None;
        }
        let fits = |(wanted, _): &(Option<String>, Trick)| wanted.as_ref().is_none_or(|name| name == command);
        let index = desk.tricks.iter().position(fits)?;
        desk.tricks.remove(index).map(|(_, trick)| trick)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flows {
    pub(super) fn toward(&self, toward: Toward) -> Flow {
        match toward {
            Toward::Server => self.server,
            Toward::Client => self.client,
        }
    }
}

/// Those that have no answer of their own: what comes of them is sent as if unasked, one for each channel.
pub(super) fn is_subscription(command: &str) -> bool {
    command.ends_with("SUBSCRIBE")
}

/// Whether the server sent it unasked. Before RESP3 that does not show, but on a connection with subscriptions.
pub(super) fn is_unasked(message: &[u8], subscribed: bool) -> bool {
    const KINDS: [&[u8]; 9] = [
        b"message",
        b"pmessage",
        b"smessage",
        b"subscribe",
        b"psubscribe",
        b"ssubscribe",
        b"unsubscribe",
        b"punsubscribe",
        b"sunsubscribe",
    ];
    match message.first() {
        Some(b'>') => true,
        Some(b'*') if subscribed => frame::first_bulk(message).is_some_and(|kind| KINDS.contains(&kind)),
        _ => false,
    }
}
