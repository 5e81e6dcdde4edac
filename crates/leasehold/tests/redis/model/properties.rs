//! The properties that every state must have.

use super::schedule::ticks_to_grants;
use super::state::{Client, ENDLESS, Key, Kind, Phase, Setup, Share, State, Token};

pub(crate) const ALONE: &str = "no two leases of conflicting shares are valid at once";
pub(crate) const BACKED: &str = "a lease that its client believes in is in the key, for at least as long";
pub(crate) const RISING: &str = "a lease begins with a higher fence than the conflicting leases before it";
pub(crate) const USED: &str = "`used` is the sum of the holders, and at most the limit";
pub(crate) const ONE_PLACE: &str = "a token stands in one place: key, queue or absent list";
pub(crate) const FINISHED: &str = "a finished token stands nowhere";
pub(crate) const NO_ORPHAN: &str = "no finished token holds the key when all messages have arrived";
pub(crate) const EXPIRES: &str = "every key expires";
pub(crate) const ORDER: &str = "no waiter that is present is passed by a later one";
pub(crate) const SERVED: &str = "no script leaves a present waiter for whom there is room";
pub(crate) const WANTED: &str = "no release removes what its client waits for or holds";
pub(crate) const PROMPT: &str =
    "without a dead holder, every waiter is granted as soon as the holders release";
pub(crate) const LIVE: &str = "every waiter is granted within three TTLs";
pub(crate) const LONG: &str = "a pushed lease begins with at least half its TTL";

pub(crate) const CONFIRMED: &str = "no renewal confirms a fence that the key does not carry";
pub(crate) const JUMPED: &str = "a waiter that was never at the head does not return to it";
pub(crate) const PLACE: &str = "a waiter keeps its place for a TTL";

type Condition = fn(&Setup, &State) -> bool;

pub(crate) const PROPERTIES: [(&str, Condition); 17] = [
    (ALONE, no_conflict),
    (BACKED, |setup, state| (0..state.clients.len()).all(|client| is_backed(setup, state, client))),
    (RISING, |_, state| !state.broken.fence_fell),
    (USED, |setup, state| is_counted(setup, &state.server.key)),
    (ONE_PLACE, |_, state| tokens(state).all(|token| places(state, token) == 1)),
    (FINISHED, |setup, state| tokens(state).all(|token| !is_finished(setup, state, token))),
    (NO_ORPHAN, |setup, state| {
        let mut holders = state.server.key.holders().iter();
        !state.messages.is_empty() || holders.all(|holder| !is_finished(setup, state, holder.token))
    }),
    (EXPIRES, |_, state| state.server.absent_left != ENDLESS && state.server.queue_left != ENDLESS),
    (ORDER, |_, state| !state.broken.overtaken),
    (SERVED, |_, state| !state.broken.left_fitting),
    (WANTED, |_, state| !state.broken.removed),
    (LONG, |_, state| !state.broken.short),
    (CONFIRMED, |_, state| !state.broken.confirmed),
    (JUMPED, |_, state| !state.broken.jumped),
    (PLACE, |_, state| !state.broken.place_lost),
    // A state with messages under way leads to one without, by steps that cost no fault.
    (PROMPT, |setup, state| {
        !state.messages.is_empty()
            || !is_free_of_the_dead(setup, state)
            || ticks_to_grants(setup, state) == Some(0)
    }),
    (LIVE, |setup, state| !state.messages.is_empty() || ticks_to_grants(setup, state).is_some()),
];

/// States that a run has to reach, or it shows nothing.
pub(crate) const REACHED: [(&str, Condition); 3] = [
    ("a push is under way", |_, state| state.messages.iter().any(|message| message.kind == Kind::Push)),
    ("a waiter is in the queue", |_, state| !state.server.queue.is_empty()),
    ("the last attempt of a client holds a lease", |setup, state| {
        state.clients.iter().any(|at| at.phase == Phase::Held && at.attempt == setup.attempts)
    }),
];

fn believes(at: &Client) -> bool {
    at.phase == Phase::Held && at.left > 0 && !at.forced
}

fn no_conflict(setup: &Setup, state: &State) -> bool {
    let (mut exclusive, mut readers, mut permits) = (0, 0, 0);
    for (at, profile) in state.clients.iter().zip(setup.clients) {
        if believes(at) {
            match profile.share {
                Share::Exclusive => exclusive += 1,
                Share::Reader => readers += 1,
                Share::Permits { take, .. } => permits += take,
            }
        }
    }
    let kinds = u8::from(exclusive > 0) + u8::from(readers > 0) + u8::from(permits > 0);
    exclusive <= 1 && kinds <= 1 && permits <= setup.limit
}

fn is_backed(setup: &Setup, state: &State, client: usize) -> bool {
    let at = &state.clients[client];
    if !believes(at) {
        return true;
    }
    let holder = state.server.key.holder(setup.token(client, at.attempt));
    holder.is_some_and(|holder| holder.fence == at.fence && holder.left >= at.left)
}

fn is_counted(setup: &Setup, key: &Key) -> bool {
    let Key::Shares { holders, permits, used, soonest, left } = key else { return true };
    let sum: u8 = holders.iter().map(|holder| setup.share(holder.token).weight()).sum();
    let first = holders.iter().map(|holder| holder.left).min().unwrap_or(0);
    let last = holders.iter().map(|holder| holder.left).max().unwrap_or(0);
    sum == *used && (!permits || sum <= setup.limit) && *soonest <= first && last <= *left
}

fn tokens(state: &State) -> impl Iterator<Item = Token> {
    let server = &state.server;
    let holders = server.key.holders().iter().map(|holder| holder.token);
    holders.chain(server.queue.iter().copied()).chain(server.absent.iter().copied())
}

fn places(state: &State, token: Token) -> usize {
    tokens(state).filter(|other| *other == token).count()
}

/// Returns true for a token of a live client whose attempt is over, and its release answered for good.
fn is_finished(setup: &Setup, state: &State, token: Token) -> bool {
    !state.is_dead(token) && state.current(setup, token).is_none()
}

/// Returns true if every holder can release, and every client in the queue that looks present is alive.
fn is_free_of_the_dead(setup: &Setup, state: &State) -> bool {
    let server = &state.server;
    let mut holders = server.key.holders().iter();
    holders.all(|holder| holder.left == 0 || state.current(setup, holder.token).is_some())
        && server
            .queue
            .iter()
            .all(|&token| !state.is_dead(token) || server.here[usize::from(token.client)] == 0)
}
