//! The fair schedule: no more faults, every client asks, releases what it holds, and every message arrives.

use super::state::{Phase, Setup, Small, State};

/// Ticks until every client that waits has held its lease; none if that takes too long.
pub(crate) fn ticks_to_grants(setup: &Setup, state: &State) -> Option<Small> {
    let mut state = *state;
    let longest = setup.clients.iter().map(|profile| profile.ttl).max().unwrap_or(0);
    let waits: Vec<bool> = state.clients.iter().map(|at| at.phase == Phase::Waiting).collect();
    for (client, at) in state.clients.iter_mut().enumerate() {
        state.server.subscribed[client] = at.phase != Phase::Dead && !setup.clients[client].polls;
        (at.asked, at.released) = (false, false);
    }
    let mut granted = vec![false; waits.len()];
    for ticks in 0..=3 * longest {
        settle(setup, &mut state, &mut granted);
        if waits.iter().zip(&granted).all(|(waits, granted)| !waits || *granted) {
            return Some(ticks);
        }
        setup.tick(&mut state, None);
    }
    None
}

/// Lets every client act, and every message arrive, until nothing more happens in this tick.
fn settle(setup: &Setup, state: &mut State, granted: &mut [bool]) {
    for _ in 0..100 {
        for (client, granted) in granted.iter_mut().enumerate() {
            let at = &state.clients[client];
            // A client that polls hears of its grant by its next poll.
            let has_more = || {
                let token = setup.token(client, at.attempt);
                let is_quiet = state.messages.iter().all(|message| message.token != token);
                is_quiet && setup.clients[client].polls && state.server.key.holder(token).is_some()
            };
            match at.phase {
                Phase::Waiting if !at.asked || has_more() => setup.ask(state, client, true),
                Phase::Releasing if !at.released => setup.release(state, client),
                Phase::Held => {
                    *granted = true;
                    setup.release(state, client);
                }
                _ => {}
            }
        }
        if state.messages.is_empty() {
            return;
        }
        let message = state.messages.remove(0);
        setup.deliver(state, message, true);
    }
}
