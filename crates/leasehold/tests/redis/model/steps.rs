//! The steps: a client decides, a message arrives, time passes, a fault happens.

use super::clients::receive;
use super::scripts::Script;
use super::state::{Client, ENDLESS, Key, Kind, Message, Phase, PushCounts, Rule, Setup, State, Token};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// All clocks go on by one, but the one of a client that is slow.
    Tick {
        slow: Option<u8>,
    },
    Ask {
        client: u8,
        again: bool,
    },
    Renew {
        client: u8,
    },
    /// A holder or a waiter ends its attempt, or repeats its release.
    Release {
        client: u8,
    },
    Deliver(Message),
    Lose(Message),
    /// The request arrives, and its answer is lost.
    Unheard(Message),
    /// The request arrives at a server that has just become a replica.
    Refuse(Message),
    Disconnect {
        client: u8,
    },
    Subscribe {
        client: u8,
    },
    Crash {
        client: u8,
    },
    /// The server notices that a crashed client's connection is gone.
    Notice {
        client: u8,
    },
    ForceRelease,
}

impl Setup {
    pub(crate) fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick { slow: None });
        for (client, at) in state.clients.iter().enumerate() {
            self.decisions(state, client, at, steps);
            self.connection(state, client, at, steps);
            if state.faults.slow_ticks > 0 && at.phase != Phase::Dead {
                steps.push(Step::Tick { slow: Some(client as u8) });
            }
        }
        let mut previous = None;
        for message in state.messages.iter().copied() {
            // The messages are sorted, so that equal ones stand together.
            if previous.replace(message) == Some(message) {
                continue;
            }
            steps.push(Step::Deliver(message));
            if state.faults.losses > 0 {
                steps.push(Step::Lose(message));
                if message.kind.is_request() && !message.silent {
                    steps.push(Step::Unheard(message));
                }
            }
            if state.faults.refusals > 0 && message.kind.is_request() {
                steps.push(Step::Refuse(message));
            }
        }
        if state.faults.forced > 0 && state.server.key != Key::Free {
            steps.push(Step::ForceRelease);
        }
    }

    fn decisions(&self, state: &State, client: usize, at: &Client, steps: &mut Vec<Step>) {
        let id = client as u8;
        if state.messages.len() >= self.in_flight {
            return;
        }
        match at.phase {
            Phase::Idle => steps.push(Step::Ask { client: id, again: false }),
            Phase::Waiting => {
                if !at.asked && at.asks < self.asks {
                    steps.push(Step::Ask { client: id, again: true });
                    if self.repeats_wait && at.unanswered > 0 {
                        steps.push(Step::Ask { client: id, again: false });
                    }
                }
                if self.cancels {
                    steps.push(Step::Release { client: id });
                }
            }
            Phase::Held => {
                steps.push(Step::Release { client: id });
                if at.renewals < self.renewals {
                    steps.push(Step::Renew { client: id });
                }
            }
            Phase::Releasing => {
                if !at.released && at.releases < self.releases {
                    steps.push(Step::Release { client: id });
                }
            }
            Phase::Done | Phase::Dead => {}
        }
    }

    fn connection(&self, state: &State, client: usize, at: &Client, steps: &mut Vec<Step>) {
        let id = client as u8;
        let subscribed = state.server.subscribed[client];
        if at.phase == Phase::Dead {
            if subscribed {
                steps.push(Step::Notice { client: id });
            }
            return;
        }
        if !self.clients[client].polls && !subscribed {
            steps.push(Step::Subscribe { client: id });
        } else if subscribed && state.faults.disconnects > 0 && at.phase == Phase::Waiting {
            steps.push(Step::Disconnect { client: id });
        }
        if state.faults.crashes > 0 && !matches!(at.phase, Phase::Idle | Phase::Done) {
            steps.push(Step::Crash { client: id });
        }
    }

    /// The state after a step, in its normal form.
    pub(crate) fn after(&self, before: &State, step: Step) -> State {
        let mut state = *before;
        match step {
            Step::Tick { slow } => {
                state.faults.slow_ticks -= u8::from(slow.is_some());
                self.tick(&mut state, slow.map(usize::from));
            }
            Step::Ask { client, again } => self.ask(&mut state, client.into(), again),
            Step::Renew { client } => {
                let at = &mut state.clients[usize::from(client)];
                at.renewals += 1;
                let (attempt, fence) = (at.attempt, at.fence);
                let token = self.token(client.into(), attempt);
                state.messages.push(Message {
                    kind: Kind::Renew,
                    token,
                    attempt,
                    fence,
                    ..Message::default()
                });
            }
            Step::Release { client } => self.release(&mut state, client.into()),
            Step::Deliver(message) => {
                take(&mut state, message);
                self.deliver(&mut state, message, true);
            }
            Step::Unheard(message) => {
                state.faults.losses -= 1;
                take(&mut state, message);
                self.deliver(&mut state, message, false);
            }
            Step::Lose(message) => {
                state.faults.losses -= 1;
                take(&mut state, message);
            }
            Step::Refuse(message) => {
                state.faults.refusals -= 1;
                take(&mut state, message);
                if message.kind == Kind::Release {
                    Script { setup: self, state: &mut state, token: message.token }.refused_release();
                }
            }
            Step::Disconnect { client } => {
                state.faults.disconnects -= 1;
                state.server.subscribed[usize::from(client)] = false;
            }
            Step::Subscribe { client } => {
                state.server.subscribed[usize::from(client)] = true;
                state.clients[usize::from(client)].asked = false;
            }
            Step::Crash { client } => {
                state.faults.crashes -= 1;
                let at = &mut state.clients[usize::from(client)];
                let attempt = at.attempt;
                *at = Client { phase: Phase::Dead, attempt, other_ask: ENDLESS, ..Client::default() };
            }
            Step::Notice { client } => state.server.subscribed[usize::from(client)] = false,
            Step::ForceRelease => {
                state.faults.forced -= 1;
                for holder in state.server.key.holders().to_vec() {
                    let at = &mut state.clients[usize::from(holder.token.client)];
                    at.forced |= matches!(at.phase, Phase::Waiting | Phase::Held);
                }
                let nobody = Token { client: u8::MAX, number: 0 };
                Script { setup: self, state: &mut state, token: nobody }.force_release();
            }
        }
        state.normalize(self);
        state
    }

    pub(crate) fn ask(&self, state: &mut State, client: usize, again: bool) {
        let at = &mut state.clients[client];
        if at.phase == Phase::Idle {
            at.phase = Phase::Waiting;
        }
        if self.push_counts == PushCounts::LatestAsk {
            at.other_ask = 0;
        }
        at.repeated |= at.asks > 0;
        at.asks = (at.asks + 1).min(self.asks.max(2));
        at.unanswered += 1;
        (at.asked, at.not_after) = (true, self.late);
        let attempt = at.attempt;
        let (token, not_after) = (self.token(client, attempt), self.late);
        state.messages.push(Message {
            kind: Kind::Ask,
            token,
            attempt,
            not_after,
            again,
            ..Message::default()
        });
    }

    pub(crate) fn release(&self, state: &mut State, client: usize) {
        let at = &mut state.clients[client];
        let shown = !self.keeps(Rule::ReleaseByToken) || !self.keeps(Rule::CancelReleasesKey);
        let release = Message {
            kind: Kind::Release,
            token: self.token(client, at.attempt),
            attempt: at.attempt,
            fence: if shown { at.fence } else { 0 },
            thorough: at.repeated || at.unanswered > 0,
            last: at.is_settled(),
            ..Message::default()
        };
        if at.phase != Phase::Releasing {
            at.lose();
        }
        at.releases += 1;
        at.released = true;
        state.messages.push(release);
    }

    /// A message arrives. A grant is under way for any time; every other answer is heard at once or, not
    /// `heard`, never.
    pub(crate) fn deliver(&self, state: &mut State, message: Message, heard: bool) {
        if !message.kind.is_request() {
            return receive(self, state, message);
        }
        let mut script = Script { setup: self, state, token: message.token };
        let (kind, fence) = match message.kind {
            Kind::Ask => script.ask(message),
            Kind::Release => {
                script.release(message);
                (Kind::Released, 0)
            }
            _ => (script.renew(message.fence), message.fence),
        };
        let Message { token, attempt, age, last, silent, .. } = message;
        let answer = Message { kind, token, attempt, fence, age, last, ..Message::default() };
        if kind == Kind::Granted && heard {
            state.messages.push(answer);
        } else if heard && !silent {
            receive(self, state, answer);
        }
    }

    pub(crate) fn tick(&self, state: &mut State, slow: Option<usize>) {
        self.expire(state);
        for (client, at) in state.clients.iter_mut().enumerate() {
            (at.asked, at.released) = (false, false);
            if slow == Some(client) {
                continue;
            }
            let ttl = self.clients[client].ttl;
            at.not_after = at.not_after.saturating_sub(1);
            if at.phase == Phase::Waiting {
                at.first_ask = (at.first_ask + 1).min(ttl);
            }
            if at.other_ask != ENDLESS {
                at.other_ask = (at.other_ask + 1).min(ttl);
            }
            if at.phase == Phase::Held {
                at.left -= 1;
                if at.left == 0 {
                    at.lose();
                }
            }
        }
        for message in state.messages.iter_mut() {
            message.not_after = message.not_after.saturating_sub(1);
            let client = usize::from(message.token.client);
            let is_timed = !matches!(message.kind, Kind::Release | Kind::Push);
            if is_timed && slow != Some(client) {
                message.age = (message.age + 1).min(self.clients[client].ttl);
            }
        }
    }
}

impl Setup {
    /// A tick of the server's clock.
    fn expire(&self, state: &mut State) {
        let State { server, clients, broken, .. } = state;
        match &mut server.key {
            Key::Free => {}
            Key::Exclusive(holder) => {
                holder.left -= 1;
                if holder.left == 0 {
                    server.key = Key::Free;
                }
            }
            Key::Shares { holders, soonest, left, .. } => {
                for holder in holders.iter_mut() {
                    holder.left = holder.left.saturating_sub(1);
                }
                *soonest = soonest.saturating_sub(1);
                *left -= 1;
                if *left == 0 {
                    server.key = Key::Free;
                }
            }
        }
        for here in &mut server.here {
            *here = here.saturating_sub(1);
        }
        let lists =
            [(&mut server.queue, &mut server.queue_left), (&mut server.absent, &mut server.absent_left)];
        for (list, left) in lists {
            if *left != ENDLESS {
                *left = left.saturating_sub(1);
            }
            if *left > 0 {
                continue;
            }
            for token in list.iter() {
                let client = usize::from(token.client);
                let at = &mut clients[client];
                // A waiter's entry outlives its TTL, counted from an ask that is not older than the first.
                let is_early = at.phase == Phase::Waiting && at.first_ask + 1 < self.clients[client].ttl;
                broken.place_lost |= is_early && self.token(client, at.attempt) == *token;
                (at.arrival, at.was_absent) = (0, false);
            }
            list.clear();
        }
    }
}

fn take(state: &mut State, message: Message) {
    if let Some(at) = state.messages.iter().position(|other| *other == message) {
        state.messages.remove(at);
    }
}
