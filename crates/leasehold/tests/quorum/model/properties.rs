//! What must never be (B9), and what has to be seen, or the model says nothing.

use stateright::Property;

use super::state::{Client, NEVER, NODES, Phase, SERVED, Setup, State, UNWRITTEN};

pub(crate) const DISTINCT: &str = "fences of grants are distinct";
pub(crate) const RISING: &str = "a round sent after a grant completed gets a higher fence";
pub(crate) const NO_RENEWAL: &str = "no renewal sent after a higher grant succeeds";
pub(crate) const ALONE: &str = "no two leases are valid at once";
pub(crate) const NO_ORPHAN: &str = "what a node has released does not come back";
pub(crate) const OPEN: &str = "no fence shuts a node for longer than S";

pub(crate) const GRANT: &str = "a grant happens";
pub(crate) const SECOND_GRANT: &str = "a second grant happens";
pub(crate) const REPAIR: &str = "a repair happens in quarantine";
pub(crate) const VOTE_BACK: &str = "a node that forgot votes again";

pub(crate) fn of(setup: &Setup) -> Vec<Property<Setup>> {
    let mut all = vec![
        Property::always(DISTINCT, |_, state: &State| !state.broken.same_fence),
        Property::always(RISING, |_, state: &State| !state.broken.fence_fell),
        Property::sometimes(GRANT, |_, state: &State| grants(state) >= 1),
    ];
    if setup.ttls.len() > 1 {
        all.push(Property::sometimes(SECOND_GRANT, |_, state: &State| grants(state) >= 2));
    }
    if setup.renewals {
        all.push(Property::always(NO_RENEWAL, |_, state: &State| !state.broken.renewed_past));
    }
    if !setup.any_expiry && setup.leaps == 0 {
        all.push(Property::always(ALONE, |_, state: &State| {
            state.clients.iter().filter(|at| is_valid(at, state)).count() <= 1
        }));
    }
    // A repair that outlives its node's memory can put back what was released, on that one node, for one TTL. It would have to
    // arrive on a connection that the restart has closed.
    if setup.releases && !(setup.repairs && setup.forgets > 0) {
        all.push(Property::always(NO_ORPHAN, no_orphan));
    }
    if setup.leaps == 0 {
        all.push(Property::always(OPEN, |setup: &Setup, state: &State| {
            state.nodes.iter().all(|node| node.last <= state.now + node.offset + setup.s + 1)
        }));
    }
    if setup.forgets > 0 && setup.repairs {
        all.push(Property::sometimes(REPAIR, |setup: &Setup, state: &State| {
            state.nodes.iter().any(|node| {
                let counting = !matches!(node.born, NEVER | SERVED | UNWRITTEN);
                counting && state.now + node.offset - node.born < setup.quarantine && node.lock.is_some()
            })
        }));
    }
    if setup.forgets > 0 && setup.leaps == 0 && setup.ticks >= setup.quarantine {
        all.push(Property::sometimes(VOTE_BACK, |_, state: &State| {
            // A lock that no repair brought was a vote.
            let voted = |node: usize| {
                state.nodes[node].lock.is_some_and(|lock| {
                    let at = &state.clients[lock.token];
                    at.granted && !at.repairs.has(node)
                })
            };
            (0..NODES).any(|node| state.nodes[node].born == SERVED && voted(node))
        }));
    }
    all
}

fn grants(state: &State) -> usize {
    state.clients.iter().filter(|at| at.granted).count()
}

fn is_valid(at: &Client, state: &State) -> bool {
    at.phase == Phase::Held && state.now < at.until
}

fn no_orphan(_: &Setup, state: &State) -> bool {
    (0..NODES).all(|node| state.nodes[node].lock.is_none_or(|lock| !state.clients[lock.token].left.has(node)))
}
