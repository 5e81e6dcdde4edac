//! What a node does with a message: part B of the protocol, one function for each script.

use super::state::{Lock, NEVER, Node, Rule, SERVED, Setup, Tick, UNWRITTEN};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Counted,
    /// It is there again, on a node that is in quarantine.
    NotCounted,
    Empty,
    Refused,
}

/// A node at a moment, and what it is asked by whom.
pub(crate) struct Script<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) node: &'a mut Node,
    /// By the node's clock.
    pub(crate) time: Tick,
    /// By the client's clock, which is right.
    pub(crate) now: Tick,
    pub(crate) token: usize,
    pub(crate) fence: Tick,
}

impl Script<'_> {
    /// A vote (B2, B3, B6): whether the node accepts this fence for this token.
    pub(crate) fn acquire(mut self) -> bool {
        self.expire();
        let near = (self.fence - self.time).abs() <= self.setup.s;
        if self.node.born == UNWRITTEN && (near || !self.setup.keeps(Rule::BornInWindow)) {
            self.node.born = self.time;
        }
        if self.is_quarantined() {
            return false;
        }
        let above = self.node.last < self.fence || !self.setup.keeps(Rule::Rising);
        let acceptable = above && (near || !self.setup.keeps(Rule::Window));
        match &mut self.node.lock {
            Some(lock) if lock.token != self.token => false,
            Some(lock) if lock.fence == self.fence || !self.setup.keeps(Rule::TokenAndFence) => {
                self.arm();
                true
            }
            _ if acceptable => {
                self.put();
                true
            }
            _ => false,
        }
    }

    /// Compares the whole value; never creates.
    pub(crate) fn renew(mut self) -> Renewal {
        self.expire();
        match self.node.lock {
            Some(lock) if lock.token == self.token && lock.fence == self.fence => {
                self.arm();
                let new = self.is_quarantined() || self.is_new_to_holder();
                let counts = !new || !self.setup.keeps(Rule::RepairedCountsLater);
                if counts { Renewal::Counted } else { Renewal::NotCounted }
            }
            None if self.node.last <= self.fence => Renewal::Empty,
            None | Some(_) => Renewal::Refused,
        }
    }

    /// Puts a lease back where nothing is (B7).
    pub(crate) fn repair(mut self) {
        self.expire();
        let fits = self.node.lock.is_none() && self.node.last <= self.fence;
        if fits || !self.setup.keeps(Rule::RepairOnlyEmpty) {
            self.put();
        }
    }

    /// Compares the token only (B5). A repair, which may be under way, asks for nothing above its own fence.
    pub(crate) fn release(mut self, raises: bool, put_back: bool) {
        self.expire();
        if self.node.lock.is_some_and(|lock| lock.token == self.token) {
            self.node.lock = None;
        }
        let possible = self.fence <= self.time + self.setup.s || !self.setup.keeps(Rule::RaiseInWindow);
        let barred = self.fence + Tick::from(put_back);
        if raises && possible && self.node.last < barred {
            self.node.last = barred;
            self.outlive();
        }
    }

    /// Lock and fence, for a TTL from now.
    fn put(&mut self) {
        self.node.lock = Some(Lock { token: self.token, fence: self.fence, until: NEVER });
        self.node.last = self.node.last.max(self.fence);
        self.arm();
    }

    /// Never shortens.
    fn arm(&mut self) {
        let until = self.time + self.setup.ttls[self.token];
        if let Some(lock) = &mut self.node.lock
            && !self.setup.any_expiry
        {
            lock.until = lock.until.max(until);
        }
        self.outlive();
    }

    /// The key with the fence outlives the lease by more than the quarantine (B2). Only a leap of the clock makes that
    /// matter.
    fn outlive(&mut self) {
        if self.setup.leaps > 0 && !self.setup.keeps(Rule::FenceStays) {
            let until = self.time + self.setup.ttls[self.token] + self.setup.quarantine + 1;
            self.node.last_until = self.node.last_until.max(until);
        }
    }

    fn expire(&mut self) {
        self.node.expire(self.setup, self.time);
    }

    fn is_new_to_holder(&self) -> bool {
        let forgot = self.node.forgot;
        forgot != NEVER && self.now - forgot < self.setup.quarantine && self.setup.keeps(Rule::HolderTimes)
    }

    fn is_quarantined(&self) -> bool {
        let length = if self.setup.keeps(Rule::QuarantineByMaxTtl) {
            self.setup.quarantine
        } else {
            self.setup.quarantine - self.setup.max_ttl() + self.setup.ttls[self.token]
        };
        match self.node.born {
            _ if !self.setup.keeps(Rule::Quarantine) => false,
            NEVER | SERVED => false,
            UNWRITTEN => true,
            born => self.time - born < length,
        }
    }
}

impl Node {
    /// Drops what has ended by this node's clock.
    pub(crate) fn expire(&mut self, setup: &Setup, time: Tick) {
        if self.lock.is_some_and(|lock| lock.until <= time) && !setup.any_expiry {
            self.lock = None;
        }
        if self.last_until != NEVER && self.last_until <= time {
            (self.last, self.last_until) = (NEVER, NEVER);
        }
    }
}
