//! The scripts on the server: LOCK with an ask or a release, RENEW, and the force-release of ADMIN.

use super::list::List;
use super::state::{ENDLESS, Holder, Key, Kind, Message, Phase, Rule, Setup, Share, Small, State, Token};

/// One execution. It changes the state, and puts its pushes into the network; the answer is returned.
pub(crate) struct Script<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) state: &'a mut State,
    pub(crate) token: Token,
}

impl Script<'_> {
    /// Asks for the lock with `w` or `a`. The fence of a granted one; none for a late or queued one.
    pub(crate) fn ask(&mut self, message: Message) -> (Kind, Small) {
        if message.not_after == 0 && self.setup.keeps(Rule::NotAfter) {
            return (Kind::Late, 0);
        }
        let profile = self.setup.profile(self.token);
        if profile.polls {
            self.state.server.here[usize::from(self.token.client)] = self.setup.here;
        }
        self.purge();
        let own = self.state.server.key.holder(self.token);
        if let Some(own) = own
            && profile.share == Share::Exclusive
        {
            self.rearm(self.setup.keeps(Rule::RepeatRearms));
            return (Kind::Granted, own.fence);
        }
        let passes = profile.share.barges() || !self.setup.keeps(Rule::NewcomerWaits);
        if self.setup.keeps(Rule::ReturnsBeforeServe) {
            self.return_to_queue(message.again);
        }
        if self.setup.keeps(Rule::NewcomerWaits) {
            self.serve(true);
        }
        let looks = own.is_some() || self.setup.keeps(Rule::GrantedIsNotQueued);
        if let Some(holder) = self.state.server.key.holder(self.token)
            && looks
        {
            self.rearm(self.setup.keeps(Rule::RepeatRearms));
            self.note_left_fitting();
            return (Kind::Granted, holder.fence);
        }
        if self.fits(self.token) && (passes || self.state.server.queue.is_empty()) {
            let fence = self.grant(self.token, false);
            if self.setup.keeps(Rule::GrantLeavesAbsentList) {
                self.leave_absent_list();
            }
            if self.setup.keeps(Rule::GrantLeavesQueue) {
                self.leave_queue();
            }
            self.note_left_fitting();
            return (Kind::Granted, fence);
        }
        self.join(message.again);
        self.note_left_fitting();
        (Kind::Queued, 0)
    }

    /// Withdraws the token: its holding is handed over, its entries go.
    pub(crate) fn release(&mut self, message: Message) {
        let wanted = self.state.current(self.setup, self.token);
        let wanted = wanted.is_some_and(|at| matches!(at.phase, Phase::Waiting | Phase::Held));
        let before = self.state.server;
        self.purge();
        let thorough = message.thorough && self.setup.keeps(Rule::ReleaseRemovesEntries);
        let own = self.state.server.key.holder(self.token);
        let is_cancel = message.fence == 0;
        let by_token = is_cancel || self.setup.keeps(Rule::ReleaseByToken);
        let mine = own.is_some_and(|own| by_token || own.fence == message.fence);
        let cancelled = is_cancel && !self.setup.keeps(Rule::CancelReleasesKey);
        if mine && !cancelled {
            self.drop_holder();
            if thorough {
                self.leave_queue();
                self.leave_absent_list();
            }
            self.serve(false);
            self.note_left_fitting();
        } else {
            let at_head = self.state.server.queue.first() == Some(&self.token);
            if at_head && !thorough {
                self.state.server.queue.remove(0);
            } else {
                self.leave_queue();
                self.leave_absent_list();
            }
            if at_head {
                if self.setup.keeps(Rule::WithdrawalServes) {
                    self.serve(false);
                }
                self.note_left_fitting();
            }
            if !self.setup.keeps(Rule::ReleaseOfNothingFreesNothing)
                && let Key::Shares { used, .. } = &mut self.state.server.key
            {
                *used = used.saturating_sub(self.setup.share(self.token).weight());
            }
        }
        let server = &self.state.server;
        let removed = before.key.holder(self.token).is_some() && server.key.holder(self.token).is_none()
            || before.queue.contains(&self.token) && !server.queue.contains(&self.token)
            || before.absent.contains(&self.token) && !server.absent.contains(&self.token);
        self.state.broken.removed |= wanted && removed;
    }

    /// Renews by the whole value. Serves no queue: it names the main key only.
    pub(crate) fn renew(&mut self, fence: Small) -> Kind {
        match self.state.server.key.holder(self.token) {
            Some(holder) if holder.fence == fence || !self.setup.keeps(Rule::RenewComparesFence) => {
                self.state.broken.confirmed |= holder.fence != fence;
                self.rearm(true);
                Kind::Renewed
            }
            None if !self.setup.keeps(Rule::RenewNeverCreates) && self.state.server.key == Key::Free => {
                let left = self.setup.profile(self.token).ttl;
                self.state.server.key = Key::Exclusive(Holder { token: self.token, fence, left });
                Kind::Renewed
            }
            _ => Kind::NotHeld,
        }
    }

    pub(crate) fn force_release(&mut self) {
        self.state.server.key = Key::Free;
        self.serve(false);
        self.note_left_fitting();
    }

    /// A release on a server that refuses writes. It executes what comes before the first write.
    pub(crate) fn refused_release(&mut self) {
        let server = &self.state.server;
        if !self.setup.keeps(Rule::PublishLast)
            && server.key.holder(self.token).is_some()
            && let Some(&head) = server.queue.first()
        {
            self.push(head, server.last + 1);
        }
    }

    /// Hands the key to the waiters for whom there is room, in order.
    fn serve(&mut self, asks: bool) {
        while let Some(&head) = self.state.server.queue.first() {
            if !self.fits(head) {
                break;
            }
            self.state.server.queue.remove(0);
            if self.is_at_its_turn(head, asks) {
                self.grant(head, !(asks && head == self.token));
            } else {
                self.put_aside(head, asks);
            }
        }
        let mut at = 1;
        while at < self.state.server.queue.len().min(self.setup.window) {
            let waiter = self.state.server.queue[at];
            let passes = self.setup.share(waiter).barges() || !self.setup.keeps(Rule::BlockedHeadBlocks);
            if !passes || !self.fits(waiter) {
                at += 1;
            } else if self.is_at_its_turn(waiter, asks) {
                self.state.server.queue.remove(at);
                self.grant(waiter, !(asks && waiter == self.token));
            } else if self.setup.keeps(Rule::AbsentBehindHeadStays) {
                at += 1;
            } else {
                self.state.server.queue.remove(at);
                self.put_aside(waiter, asks);
            }
        }
    }

    fn is_at_its_turn(&self, waiter: Token, asks: bool) -> bool {
        let is_caller = asks && waiter == self.token;
        is_caller && self.setup.keeps(Rule::CallerIsPresent)
            || is_present(self.setup, self.state, waiter)
            || !self.setup.keeps(Rule::PresenceBeforeGrant)
    }

    fn put_aside(&mut self, waiter: Token, asks: bool) {
        let is_caller = asks && waiter == self.token;
        self.state.broken.overtaken |= is_caller || is_reachable(self.setup, self.state, waiter);
        let stay = if self.setup.keeps(Rule::AbsentListExpires) { self.stay(waiter) } else { ENDLESS };
        let server = &mut self.state.server;
        server.absent_left = if server.absent.is_empty() { stay } else { server.absent_left.max(stay) };
        server.absent.push(waiter);
        let at = &mut self.state.clients[usize::from(waiter.client)];
        if self.setup.token(usize::from(waiter.client), at.attempt) == waiter {
            at.was_absent = true;
        }
    }

    fn grant(&mut self, token: Token, pushed: bool) -> Small {
        self.note_overtaking(token);
        let Script { setup, ref mut state, .. } = *self;
        let server = &mut state.server;
        server.last += 1;
        let fence = server.last;
        let share = setup.share(token);
        let ttl = setup.profile(token).ttl;
        let holder = Holder { token, fence, left: ttl };
        match &mut server.key {
            _ if share == Share::Exclusive => server.key = Key::Exclusive(holder),
            Key::Shares { holders, used, soonest, left, .. } => {
                holders.retain(|other| other.token != token);
                holders.push(holder);
                *used += share.weight();
                if setup.keeps(Rule::GrantLowersSoonest) {
                    *soonest = ttl.min(*soonest);
                }
                *left = if setup.keeps(Rule::KeyNeverShortens) { ttl.max(*left) } else { ttl };
            }
            _ => {
                let mut holders = List::default();
                holders.push(holder);
                let (permits, used) = (share.is_permits(), share.weight());
                server.key = Key::Shares { holders, permits, used, soonest: ttl, left: ttl };
            }
        }
        if let Some(at) = self.waiting(token) {
            (at.arrival, at.was_absent) = (0, false);
        }
        if pushed {
            self.push(token, fence);
        }
        fence
    }

    /// Publishes to the token's channel. A client that is dead or has lost its subscription hears nothing.
    fn push(&mut self, token: Token, fence: Small) {
        if self.state.server.subscribed[usize::from(token.client)] && !self.state.is_dead(token) {
            self.state.messages.push(Message { kind: Kind::Push, token, fence, ..Message::default() });
        }
    }

    fn join(&mut self, again: bool) {
        let token = self.token;
        let arrival = self.state.clients.iter().map(|at| at.arrival).max().unwrap_or(0) + 1;
        if let Some(at) = self.waiting(token)
            && at.arrival == 0
        {
            at.arrival = arrival;
        }
        let stay = self.stay(token);
        let is_new = self.state.server.queue.is_empty();
        let returned = self.return_to_queue(again);
        let looks = self.looks_for_entry(again);
        let server = &mut self.state.server;
        if !returned && (!looks || !server.queue.contains(&token)) {
            let at_tail = self.setup.keeps(Rule::NewAtTail);
            server.queue.insert(if at_tail { server.queue.len() } else { 0 }, token);
        }
        let shortens = is_new || !self.setup.keeps(Rule::QueueNeverShortens);
        server.queue_left = if shortens { stay } else { server.queue_left.max(stay) };
    }

    fn looks_for_entry(&self, again: bool) -> bool {
        again || self.setup.keeps(Rule::WaitLooksForEntry)
    }

    /// Moves the caller's entry from the absent list back to the head of the queue.
    fn return_to_queue(&mut self, again: bool) -> bool {
        let token = self.token;
        let jumps = self.returns_before_an_earlier_waiter();
        let looks = self.looks_for_entry(again);
        let server = &mut self.state.server;
        if !looks || !server.absent.contains(&token) || server.queue.contains(&token) {
            return false;
        }
        self.state.broken.jumped |= jumps;
        server.absent.retain(|other| *other != token);
        let at = if self.setup.keeps(Rule::AbsentReturnsToHead) { 0 } else { server.queue.len() };
        server.queue.insert(at, token);
        true
    }

    fn leave_queue(&mut self) {
        let token = self.token;
        self.state.server.queue.retain(|other| *other != token);
    }

    fn leave_absent_list(&mut self) {
        let token = self.token;
        self.state.server.absent.retain(|other| *other != token);
    }

    /// Re-arms the caller's own holding; never shortens it.
    fn rearm(&mut self, rearms: bool) {
        let ttl = self.setup.profile(self.token).ttl;
        let keeps_longer = self.setup.keeps(Rule::KeyNeverShortens);
        let weight = self.setup.share(self.token).weight();
        match &mut self.state.server.key {
            Key::Exclusive(holder) if rearms => holder.left = holder.left.max(ttl),
            Key::Shares { holders, used, left, .. } => {
                if rearms {
                    *left = if keeps_longer { ttl.max(*left) } else { ttl };
                    for holder in holders.iter_mut().filter(|holder| holder.token == self.token) {
                        holder.left = holder.left.max(ttl);
                    }
                }
                if !self.setup.keeps(Rule::HolderCountsOnce) {
                    *used += weight;
                }
            }
            _ => {}
        }
    }

    fn drop_holder(&mut self) {
        let (token, weight) = (self.token, self.setup.share(self.token).weight());
        match &mut self.state.server.key {
            Key::Shares { holders, used, .. } if holders.len() > 1 => {
                holders.retain(|holder| holder.token != token);
                *used = used.saturating_sub(weight);
            }
            key => *key = Key::Free,
        }
    }

    /// Drops the holders that have ended, once `soonest` has passed.
    fn purge(&mut self) {
        let setup = self.setup;
        let Key::Shares { holders, used, soonest, .. } = &mut self.state.server.key else { return };
        if *soonest > 0 {
            return;
        }
        holders.retain(|holder| holder.left > 0);
        *used = holders.iter().map(|holder| setup.share(holder.token).weight()).sum();
        *soonest = holders.iter().map(|holder| holder.left).min().unwrap_or(0);
        if holders.is_empty() {
            self.state.server.key = Key::Free;
        }
    }

    /// Returns true if there is room for the token's share beside the holders.
    fn fits(&self, token: Token) -> bool {
        let share = self.setup.share(token);
        match self.state.server.key {
            Key::Free => true,
            Key::Exclusive(_) => false,
            Key::Shares { permits, used, .. } => match share {
                Share::Exclusive => false,
                Share::Reader => !permits,
                Share::Permits { take, .. } => permits && used + take <= self.setup.limit,
            },
        }
    }

    /// The expiry of the lists that a waiter's ask sets.
    fn stay(&self, token: Token) -> Small {
        self.setup.profile(token).ttl + self.setup.stay
    }

    fn waiting(&mut self, token: Token) -> Option<&mut super::state::Client> {
        let client = usize::from(token.client);
        let at = &mut self.state.clients[client];
        (at.phase == Phase::Waiting && self.setup.token(client, at.attempt) == token).then_some(at)
    }

    /// For the properties: notes a grant that passes a waiter that is present and arrived earlier.
    fn note_overtaking(&mut self, token: Token) {
        let caller = self.token;
        let Some(at) = self.waiting(token) else { return };
        let (arrival, was_absent) = (at.arrival, at.was_absent);
        if was_absent || self.setup.share(token).barges() {
            return;
        }
        let passed = self.state.server.queue.iter().any(|&other| {
            let at = self.state.current(self.setup, other);
            let waits = at.is_some_and(|at| {
                at.phase == Phase::Waiting && at.arrival > 0 && (arrival == 0 || at.arrival < arrival)
            });
            waits && other != token && (other == caller || is_reachable(self.setup, self.state, other))
        });
        self.state.broken.overtaken |= passed;
    }

    /// For the properties: an earlier waiter that was never absent stands in the queue.
    fn returns_before_an_earlier_waiter(&self) -> bool {
        let arrival = self.state.clients[usize::from(self.token.client)].arrival;
        self.state.server.queue.iter().any(|&other| {
            let at = self.state.current(self.setup, other);
            at.is_some_and(|at| at.arrival > 0 && at.arrival < arrival && !at.was_absent)
        })
    }

    /// For the properties: notes a script that leaves a present waiter for whom there is room.
    fn note_left_fitting(&mut self) {
        let server = &self.state.server;
        let left = server.queue.iter().enumerate().take(self.setup.window).any(|(at, &waiter)| {
            let is_next = at == 0 || self.setup.share(waiter).barges();
            is_next && is_reachable(self.setup, self.state, waiter) && self.fits(waiter)
        });
        self.state.broken.left_fitting |= left;
    }
}

/// The answer of PUBSUB NUMSUB for the waiter's channel, or of EXISTS for its `here` key.
fn is_present(setup: &Setup, state: &State, waiter: Token) -> bool {
    let polls = setup.profile(waiter).polls;
    is_reachable(setup, state, waiter) && (!polls || setup.keeps(Rule::HereIsPresence))
}

/// Returns true if the waiter's client has a subscription, or has polled of late.
fn is_reachable(setup: &Setup, state: &State, waiter: Token) -> bool {
    let client = usize::from(waiter.client);
    if setup.clients[client].polls { state.server.here[client] > 0 } else { state.server.subscribed[client] }
}
