//! The state that a proxy's connections share with its owner: flows, armed tricks, counts.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::fault::{Counts, Flow, Toward, Trick};
use crate::dice::Dice;
use crate::lock;
use crate::resp::Reply;

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) flows: watch::Sender<Flows>,
    state: Mutex<State>,
}

/// The flow of each direction, by [`Toward`].
pub(super) type Flows = [Flow; 2];

#[derive(Debug)]
pub(super) struct State {
    /// The armed tricks in order, each with the command that it waits for.
    pub(super) tricks: VecDeque<(Option<String>, Trick)>,
    pub(super) counts: Counts,
    dice: [Dice; 2],
}

impl Hub {
    pub(super) fn new() -> Self {
        let state = State { tricks: VecDeque::new(), counts: Counts::default(), dice: [Dice(0), Dice(0)] };
        Hub { flows: watch::Sender::default(), state: Mutex::new(state) }
    }

    pub(super) fn set(&self, toward: Toward, flow: Flow) {
        if let Flow::Jitter { seed, .. } = flow {
            self.state().dice[toward as usize] = Dice(seed);
        }
        self.flows.send_modify(|flows| flows[toward as usize] = flow);
    }

    /// Returns the delay of a piece, random for [`Flow::Jitter`].
    pub(super) fn delay(&self, toward: Toward, flow: Flow) -> Option<Duration> {
        match flow {
            Flow::Delay(by) => Some(by),
            Flow::Jitter { least, most, .. } => {
                let span_ns = most.saturating_sub(least).as_nanos() as u64;
                let more_ns = self.state().dice[toward as usize].below(span_ns + 1);
                Some(least + Duration::from_nanos(more_ns))
            }
            Flow::Pass | Flow::Hold | Flow::Swallow => None,
        }
    }

    pub(super) fn count(&self, counted: impl FnOnce(&mut Counts)) {
        counted(&mut self.state().counts);
    }

    /// Counts a request, and takes the trick for it.
    pub(super) fn request(&self, command: &str) -> Option<Trick> {
        let mut state = self.state();
        state.counts.requests += 1;
        *state.counts.commands.entry(command.to_owned()).or_default() += 1;
        if is_subscription(command) {
            return None;
        }
        let fits = |(wanted, _): &(Option<String>, Trick)| wanted.as_ref().is_none_or(|name| name == command);
        let index = state.tricks.iter().position(fits)?;
        state.tricks.remove(index).map(|(_, trick)| trick)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns true for commands without a reply: the server confirms each channel by a message.
pub(super) fn is_subscription(command: &str) -> bool {
    command.ends_with("SUBSCRIBE")
}

/// Returns true for a push. RESP2 has them only on a connection with subscriptions.
pub(super) fn is_unasked(message: &Reply, subscribed: bool) -> bool {
    match message {
        Reply::Push(_) => true,
        Reply::Array(items) if subscribed => {
            let kind = items.first().and_then(Reply::text).unwrap_or_default();
            kind.ends_with("message") || kind.ends_with("subscribe")
        }
        _ => false,
    }
}
