//! The client: what it does with an answer or a push.

use super::state::{
    Client, ENDLESS, Kind, Message, Phase, PushCounts, Rule, Setup, Share, Small, State, Token,
};

pub(crate) fn receive(setup: &Setup, state: &mut State, message: Message) {
    if message.kind == Kind::Push {
        return receive_push(setup, state, message);
    }
    let client = usize::from(message.token.client);
    let left = setup.believed(client).saturating_sub(message.age);
    let at = &mut state.clients[client];
    if message.attempt != at.attempt || matches!(at.phase, Phase::Done | Phase::Dead) {
        if message.kind == Kind::Granted {
            give_back(setup, state, message.token);
        }
        return;
    }
    if matches!(message.kind, Kind::Granted | Kind::Queued | Kind::Late) {
        at.unanswered = at.unanswered.saturating_sub(1);
    }
    let is_own = at.fence == message.fence;
    match (message.kind, at.phase) {
        (Kind::Granted, Phase::Waiting) => {
            let from_receipt = setup.clients[client].ttl;
            let left = if setup.keeps(Rule::AnswerCountsFromSend) { left } else { from_receipt };
            if left > 0 {
                begin(setup, state, client, message.fence, left);
            }
        }
        (Kind::Granted | Kind::Renewed, Phase::Held) if is_own => at.left = at.left.max(left),
        (Kind::NotHeld, Phase::Held) if is_own => at.lose(),
        (Kind::Queued, Phase::Waiting) if setup.push_counts == PushCounts::LatestQueuedAnswer => {
            at.other_ask = at.other_ask.min(message.age);
        }
        (Kind::Released, Phase::Releasing) if message.last || !setup.keeps(Rule::SecondRelease) => {
            finish(setup, at);
        }
        _ => {}
    }
}

fn receive_push(setup: &Setup, state: &mut State, message: Message) {
    let client = usize::from(message.token.client);
    let at = &state.clients[client];
    let is_current = setup.token(client, at.attempt) == message.token;
    match at.phase {
        Phase::Waiting if is_current => take_push(setup, state, client, message.fence),
        // A lease that has begun needs no push; a release that is under way gives the grant back.
        Phase::Held | Phase::Releasing if is_current => {}
        _ => give_back(setup, state, message.token),
    }
}

/// A push carries no age: its lease counts from an ask that the client remembers.
fn take_push(setup: &Setup, state: &mut State, client: usize, fence: Small) {
    let at = &mut state.clients[client];
    let age = match setup.push_counts {
        PushCounts::FirstAsk => at.first_ask,
        PushCounts::Receipt => 0,
        PushCounts::LatestAsk | PushCounts::LatestQueuedAnswer => at.other_ask,
    };
    let left = setup.believed(client).saturating_sub(age);
    let is_short = left * 2 < setup.clients[client].ttl;
    if left == 0 || is_short && setup.keeps(Rule::ConfirmBelowHalf) {
        // The client asks at once: the script finds its grant, re-arms it, and the answer has an age.
        at.asked = false;
        at.asks = at.asks.saturating_sub(1).max(1);
    } else {
        state.broken.short |= is_short;
        begin(setup, state, client, fence, left);
    }
}

fn begin(setup: &Setup, state: &mut State, client: usize, fence: Small, left: Small) {
    let exclusive = setup.clients[client].share == Share::Exclusive;
    let is_forced = state.clients[client].forced;
    let [highest_exclusive, highest] = &mut state.begun;
    state.broken.fence_fell |= !is_forced && fence <= if exclusive { *highest } else { *highest_exclusive };
    *highest = fence.max(*highest);
    if exclusive {
        *highest_exclusive = fence.max(*highest_exclusive);
    }
    let at = &mut state.clients[client];
    (at.phase, at.fence, at.left) = (Phase::Held, fence, left);
    (at.first_ask, at.other_ask, at.arrival, at.was_absent) = (0, ENDLESS, 0, false);
}

/// Answers a grant for a finished token with a release.
fn give_back(setup: &Setup, state: &mut State, token: Token) {
    if setup.keeps(Rule::GiveBack) && !state.is_dead(token) {
        let release =
            Message { kind: Kind::Release, token, thorough: true, silent: true, ..Message::default() };
        state.messages.push(release);
    }
}

fn finish(setup: &Setup, at: &mut Client) {
    let next = at.attempt + 1;
    *at = Client { other_ask: ENDLESS, ..Client::default() };
    if next > setup.attempts {
        (at.phase, at.attempt) = (Phase::Done, setup.attempts);
    } else {
        at.attempt = next;
    }
}

impl Client {
    /// The attempt is over. Its release goes out next.
    pub(crate) fn lose(&mut self) {
        self.phase = Phase::Releasing;
        (self.left, self.first_ask, self.other_ask) = (0, 0, ENDLESS);
        (self.arrival, self.was_absent, self.forced) = (0, false, false);
    }

    /// Returns true if no ask of the token can be executed any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.unanswered == 0 || self.not_after == 0
    }
}
