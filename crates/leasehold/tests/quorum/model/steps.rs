//! What may happen next: a client decides, a message arrives, time passes, something fails.

use stateright::{Model, Property};

use super::properties;
use super::rules::{Renewal, Script};
use super::state::{Client, NEVER, NODES, Node, Nodes, Phase, Rule, SERVED, Setup, State, Tick, UNWRITTEN};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All clocks go on by one.
    Tick,
    /// A client sends a round: the first, or the second.
    Ask {
        client: usize,
        fence: Tick,
    },
    /// The claim of one round arrives, and its answer too, unless it is lost.
    Acquire {
        client: usize,
        round: usize,
        node: usize,
        heard: bool,
    },
    AskToRenew {
        client: usize,
    },
    Renew {
        client: usize,
        node: usize,
    },
    Repair {
        client: usize,
        node: usize,
    },
    AskToRelease {
        client: usize,
    },
    Release {
        client: usize,
        node: usize,
        raises: bool,
    },
    /// A restart or a flush.
    Forget {
        node: usize,
    },
    /// The key of the lock goes, at whatever time.
    Expire {
        node: usize,
    },
    /// The node's clock is set to so far from the true time.
    Leap {
        node: usize,
        offset: Tick,
    },
    /// The node forgets a fence that is old, by its clock and by what a client says of the others'.
    Outdate {
        node: usize,
    },
    /// The node drops by itself what has ended by its clock.
    Sweep {
        node: usize,
    },
}

impl Model for Setup {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first_state()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < self.ticks {
            steps.push(Step::Tick);
        }
        for (client, at) in state.clients.iter().enumerate() {
            self.decisions(state, client, at, steps);
            for node in 0..NODES {
                self.arrivals(client, at, node, steps);
            }
        }
        for node in 0..NODES {
            self.failures(state, node, steps);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Ask { client, fence } => ask(&mut state, client, fence, self.keeps(Rule::CountedPerFence)),
            Step::AskToRenew { client } => ask_to_renew(&mut state, client),
            Step::AskToRelease { client } => {
                let at = &mut state.clients[client];
                at.phase = Phase::Over;
                at.close();
            }
            Step::Forget { node } => {
                let at = &mut state.nodes[node];
                (at.lock, at.last, at.last_until) = (None, NEVER, NEVER);
                // Nobody can tell a restart from one just before the first claim after it: so `born` may be written here,
                // but for where a leap can come between.
                at.born = if self.leaps > 0 { UNWRITTEN } else { state.now + at.offset };
                at.forgot = if self.leaps > 0 && self.renewals { state.now } else { NEVER };
                state.forgets -= 1;
            }
            Step::Expire { node } => state.nodes[node].lock = None,
            Step::Leap { node, offset } => {
                state.nodes[node].offset = offset;
                state.leaps -= 1;
            }
            Step::Outdate { node } => state.nodes[node].last = NEVER,
            Step::Sweep { node } => {
                let time = state.now + state.nodes[node].offset;
                state.nodes[node].expire(self, time);
            }
            Step::Acquire { client, node, .. }
            | Step::Renew { client, node }
            | Step::Repair { client, node }
            | Step::Release { client, node, .. } => self.arrive(&mut state, client, node, step),
        }
        // A message that changes nothing need not be followed.
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        properties::of(self)
    }
}

impl Setup {
    /// What this client may decide to do. It may always decide to do nothing: that is a crash, a pause, or an answer that was
    /// lost or comes later.
    fn decisions(&self, state: &State, client: usize, at: &Client, steps: &mut Vec<Step>) {
        let fences = || self.leads.iter().map(|lead| state.now + lead);
        match at.phase {
            Phase::Idle => steps.extend(fences().map(|fence| Step::Ask { client, fence })),
            Phase::Asking => {
                if at.asked[1] == NEVER && self.rounds > 1 {
                    let above = fences().filter(|fence| *fence > at.asked[0]);
                    steps.extend(above.map(|fence| Step::Ask { client, fence }));
                }
            }
            Phase::Held => {
                let alive = state.now < at.until || !self.keeps(Rule::Deadline);
                let anew = at.renewal != state.now || !at.overtaken && highest_grant(state) > at.fence();
                if self.renewals && alive && anew {
                    steps.push(Step::AskToRenew { client });
                }
            }
            Phase::Over => {}
        }
        if self.releases && matches!(at.phase, Phase::Asking | Phase::Held) {
            steps.push(Step::AskToRelease { client });
        }
    }

    /// What this client sent that may arrive at this node, for the first time or again.
    fn arrivals(&self, client: usize, at: &Client, node: usize, steps: &mut Vec<Step>) {
        for round in 0..2 {
            if at.asked[round] != NEVER {
                steps.push(Step::Acquire { client, round, node, heard: true });
                // Not to hear a yes leads to more only where the client can do something else then.
                let other = self.releases || self.rounds > 1 && at.asked[1] == NEVER;
                if at.phase == Phase::Asking && other {
                    steps.push(Step::Acquire { client, round, node, heard: false });
                }
            }
        }
        if at.renews {
            steps.push(Step::Renew { client, node });
        }
        if at.repairs.has(node) {
            steps.push(Step::Repair { client, node });
        }
        if at.phase == Phase::Over {
            if self.keeps(Rule::ReleaseRaises) {
                steps.push(Step::Release { client, node, raises: true });
            }
            // Where the node is known to have said yes, and nothing else is under way, it need not raise.
            let known = at.yes.has(node) && !at.repairs.has(node);
            if known || !self.keeps(Rule::ReleaseRaises) {
                steps.push(Step::Release { client, node, raises: false });
            }
        }
    }

    fn failures(&self, state: &State, node: usize, steps: &mut Vec<Step>) {
        if state.forgets > 0 {
            steps.push(Step::Forget { node });
        }
        if self.any_expiry && state.nodes[node].lock.is_some() {
            steps.push(Step::Expire { node });
        }
        if self.leaps > 0 {
            steps.push(Step::Sweep { node });
        }
        if self.is_outdated(state, node) {
            steps.push(Step::Outdate { node });
        }
        if state.leaps > 0 {
            steps.extend(self.offsets.iter().map(|&offset| Step::Leap { node, offset }));
        }
    }

    /// Whether a client may come, for another name, by whose word the fence of this one is old: most clocks are at most S from the
    /// true time, and so this one is at most S from what they say.
    fn is_outdated(&self, state: &State, node: usize) -> bool {
        let Node { last, offset, .. } = state.nodes[node];
        let time = state.now + offset.min(self.s);
        let is_kept = self.remembered == NEVER || last == NEVER;
        !is_kept && offset.abs() <= 2 * self.s && last < time - self.remembered
    }

    /// Time passes. What makes no difference any more is made equal, so that states that differ only in it are one.
    fn tick(&self, state: &mut State) {
        state.now += 1;
        for node in &mut state.nodes {
            if self.leaps > 0 {
                if state.now - node.forgot >= self.quarantine {
                    node.forgot = NEVER;
                }
                continue;
            }
            let time = state.now + node.offset;
            node.expire(self, time);
            if !matches!(node.born, NEVER | SERVED) && time - node.born >= self.quarantine {
                node.born = SERVED;
            }
        }
        for client in &mut state.clients {
            if client.phase == Phase::Held && state.now >= client.until && self.keeps(Rule::Deadline) {
                client.close();
            }
        }
    }

    /// A yes to a claim was heard.
    fn count(&self, state: &mut State, client: usize, node: usize, fence: Tick) {
        let at = &mut state.clients[client];
        if fence == at.fence() || !self.keeps(Rule::CountedPerFence) {
            at.yes.add(node);
        }
        let in_time = state.now < at.sent + self.ttls[client] || !self.keeps(Rule::Deadline);
        if at.yes.is_majority() && in_time {
            self.grant(state, client);
        }
    }

    /// An answer to this round of renewal was heard, before the deadline.
    fn count_renewal(&self, state: &mut State, client: usize, node: usize, answer: Renewal) {
        let at = &mut state.clients[client];
        match answer {
            Renewal::Counted => at.renewed.add(node),
            Renewal::Empty if self.repairs => at.empty.add(node),
            _ => {}
        }
        let majority = at.renewed.is_majority();
        if majority {
            at.until = at.until.max(at.renewal + self.ttls[client]);
            at.repairs.0 |= at.empty.0;
            state.broken.renewed_past |= at.overtaken;
        }
    }

    fn grant(&self, state: &mut State, client: usize) {
        let fence = state.clients[client].fence();
        state.broken.same_fence |= state.clients.iter().any(|at| at.granted && at.fence() == fence);
        let at = &mut state.clients[client];
        state.broken.fence_fell |= fence <= at.floor;
        at.phase = Phase::Held;
        at.granted = true;
        at.until = at.sent + self.ttls[client];
        (at.sent, at.floor) = (NEVER, NEVER);
        if !self.releases {
            at.yes = Nodes(0);
        }
    }

    fn arrive(&self, state: &mut State, client: usize, node: usize, step: Step) {
        let at = &mut state.clients[client];
        let time = state.now + state.nodes[node].offset;
        let fence = at.fence();
        let script =
            Script { setup: self, node: &mut state.nodes[node], time, now: state.now, token: client, fence };
        match step {
            Step::Acquire { round, heard, .. } => {
                let fence = at.asked[round];
                let yes = Script { fence, ..script }.acquire();
                if yes && heard && at.phase == Phase::Asking {
                    self.count(state, client, node, fence);
                }
            }
            Step::Renew { .. } => {
                let answer = script.renew();
                if at.phase == Phase::Held && at.renewal != NEVER {
                    self.count_renewal(state, client, node, answer);
                }
            }
            Step::Repair { .. } => script.repair(),
            Step::Release { raises, .. } => {
                let put_back = at.repairs != Nodes(0);
                script.release(raises, put_back);
                at.left.add(node);
            }
            _ => unreachable!("not a message"),
        }
    }
}

fn highest_grant(state: &State) -> Tick {
    state.clients.iter().filter(|at| at.granted).map(Client::fence).max().unwrap_or(NEVER)
}

fn ask(state: &mut State, client: usize, fence: Tick, per_fence: bool) {
    let floor = highest_grant(state);
    let at = &mut state.clients[client];
    let round = usize::from(at.phase == Phase::Asking);
    at.phase = Phase::Asking;
    at.asked[round] = fence;
    if per_fence {
        at.yes = Nodes(0);
    }
    (at.sent, at.floor) = (state.now, floor);
}

fn ask_to_renew(state: &mut State, client: usize) {
    let highest = highest_grant(state);
    let at = &mut state.clients[client];
    at.renews = true;
    at.renewal = state.now;
    (at.renewed, at.empty) = (Nodes(0), Nodes(0));
    at.overtaken = highest > at.fence();
}

impl Client {
    /// Nothing more is renewed, and nobody asks when it was.
    fn close(&mut self) {
        (self.until, self.renewal, self.sent, self.floor) = (NEVER, NEVER, NEVER, NEVER);
        (self.renewed, self.empty) = (Nodes(0), Nodes(0));
        self.overtaken = false;
    }
}
