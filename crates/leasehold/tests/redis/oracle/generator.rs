//! `Generator`: the next operation of a sequence, at random, from what the claims of the sequence hold and wait for.

use leasehold::{Capabilities, Share};
use leasehold_testkit::Dice;

use super::case::{Case, Standing};
use super::operation::{Operation, Proof, Shown, Waiting};
use super::plan::{CLIENTS, TTLS_S, fair, pick};

/// How many operations a sequence has.
pub(super) const OPERATIONS: usize = 64;

/// How many claims a sequence may use.
pub(super) const CLAIMS: usize = 24;

/// A longer queue than this is another test's matter.
const WAITERS_MAX: usize = 10;

/// Makes one sequence.
pub(super) struct Generator<'a> {
    pub(super) dice: Dice,
    pub(super) can: &'a Capabilities,
}

impl Generator<'_> {
    /// The operation with this number. The last ones release all that is held or waited for.
    pub(super) fn next(&mut self, number: usize, case: &Case) -> Operation {
        let (holders, waiters) = (case.claims(Standing::Holds), case.claims(Standing::Waits));
        let left = OPERATIONS.saturating_sub(number);
        // One operation makes at most three claims more.
        if left <= holders.len() + waiters.len() + 4 {
            return self.last(case);
        }
        // What is not allowed, or has nothing to be about, is chosen anew.
        loop {
            let operation = self.any(case, &holders, &waiters);
            if let Some(operation) = operation.filter(|operation| case.is_allowed(operation)) {
                return operation;
            }
        }
    }

    fn last(&mut self, case: &Case) -> Operation {
        let standing = [case.claims(Standing::Holds), case.claims(Standing::Waits)].concat();
        match standing.as_slice() {
            [] => Operation::List { client: self.client() },
            claims => {
                let claim = *pick(&mut self.dice, claims);
                self.release(claim, case)
            }
        }
    }

    fn any(&mut self, case: &Case, holders: &[usize], waiters: &[usize]) -> Option<Operation> {
        let idle = case.claims(Standing::Idle);
        let (used, fresh): (Vec<usize>, Vec<usize>) =
            idle.into_iter().partition(|claim| case.known[*claim].is_used);
        let client = self.client();
        match self.dice.below(100) {
            0..34 => self.acquire(case, &fresh, false),
            34..57 => {
                let from = if self.dice.below(8) == 0 { waiters } else { holders };
                let claim = self.one_of(from)?;
                Some(self.release(claim, case))
            }
            57..60 => {
                let unused = &fresh[..1.min(fresh.len())];
                let claim = self.one_of(&[&used[..], unused, waiters].concat())?;
                let shown = self.shown(claim, case);
                Some(Operation::Release { shown, client })
            }
            60..65 => self.acquire(case, waiters, false),
            65..69 => self.acquire(case, holders, true),
            69..71 => self.acquire(case, &used, false),
            71..78 => {
                let count = 1 + self.dice.below(5) as usize;
                let all: Vec<usize> = (0..case.known.len()).collect();
                let from = if holders.is_empty() || self.dice.below(4) == 0 { &all } else { holders };
                let claims: Vec<usize> = (0..count).map(|_| *pick(&mut self.dice, from)).collect();
                let shown = claims.into_iter().map(|claim| self.shown(claim, case)).collect();
                Some(Operation::Renew { shown, ttl_s: *pick(&mut self.dice, &TTLS_S), client })
            }
            78..83 if self.can.conversions => {
                let claim = self.mostly(holders, waiters, &used)?;
                let mut to = *pick(&mut self.dice, &case.plan.shares);
                if case.plan.requests[claim].names.len() > 1 {
                    to = fair(to);
                }
                if self.can.shared && self.dice.below(4) == 0 {
                    to = *pick(&mut self.dice, &[Share::Exclusive, Share::Shared]);
                }
                Some(Operation::Convert { shown: self.shown(claim, case), to, client })
            }
            83..86 => {
                let claim = self.mostly(holders, waiters, &used)?;
                let ttl_s = *pick(&mut self.dice, &TTLS_S);
                Some(Operation::Detach { shown: self.shown(claim, case), ttl_s, client })
            }
            86..88 => Some(Operation::Evict { name: self.name(case), client }),
            88..90 => {
                let claim = self.mostly(holders, &used, &used)?;
                let proof = *pick(&mut self.dice, &[Proof::First, Proof::First, Proof::Last]);
                let shown = Shown { proof, ..Shown::of(claim) };
                Some(Operation::EvictHolder { name: self.name(case), shown, client })
            }
            90..92 => {
                Some(Operation::Expire { claim: self.one_of(holders)?, ttl_ms: 10 + self.dice.below(10) })
            }
            92..93 => Some(Operation::List { client }),
            93.. => self.together(case, holders, &fresh),
            _ => None,
        }
    }

    /// Some claims that are new and some releases, each of another claim.
    fn together(&mut self, case: &Case, holders: &[usize], fresh: &[usize]) -> Option<Operation> {
        let (mut holders, mut fresh) = (holders.to_vec(), fresh.to_vec());
        let count = 2 + self.dice.below(2);
        let mut operations = Vec::new();
        for _ in 0..count {
            let from = if self.dice.below(2) == 0 { &mut holders } else { &mut fresh };
            let is_release = case.known[*from.first()?].standing == Standing::Holds;
            let claim = from.swap_remove(self.dice.below(from.len() as u64) as usize);
            operations.push(match is_release {
                true => self.release(claim, case),
                false => self.acquire(case, &[claim], false)?,
            });
        }
        // A brief wait would be over at another moment on each store.
        let is_brief =
            |operation: &Operation| matches!(operation, Operation::Acquire { waiting: Waiting::Briefly, .. });
        (!operations.iter().any(is_brief)).then_some(Operation::Together(operations))
    }

    fn acquire(&mut self, case: &Case, claims: &[usize], by_any_client: bool) -> Option<Operation> {
        let claim = self.one_of(claims)?;
        let request = &case.plan.requests[claim];
        let is_crowded = request.names.iter().any(|place| case.at(*place).1 >= WAITERS_MAX);
        let waiting = match self.dice.below(100) {
            0..60 if self.can.fair && !is_crowded => Waiting::Forever,
            60..70 => Waiting::Briefly,
            _ => Waiting::Never,
        };
        let client = if by_any_client { self.client() } else { request.client };
        Some(Operation::Acquire { claim, waiting, client })
    }

    /// By its own client mostly.
    fn release(&mut self, claim: usize, case: &Case) -> Operation {
        let own = case.plan.requests[claim].client;
        let client = if self.dice.below(6) == 0 { self.client() } else { own };
        let is_token_only = self.dice.below(6) == 0;
        let mut shown = Shown { is_share_unknown: is_token_only, ..Shown::of(claim) };
        if is_token_only {
            shown.proof = Proof::None;
        }
        let operation = Operation::Release { shown, client };
        if case.is_allowed(&operation) { operation } else { Operation::Release { shown, client: own } }
    }

    /// A ticket that is right in most cases.
    fn shown(&mut self, claim: usize, case: &Case) -> Shown {
        let proof = match self.dice.below(10) {
            0 => Proof::None,
            1 => Proof::Last,
            2 => Proof::Above,
            3 => Proof::Below,
            4 => Proof::Older,
            _ => Proof::First,
        };
        let place = self.name(case);
        let is_elsewhere = self.dice.below(8) == 0 && case.plan.requests[claim].names != [place];
        let elsewhere = is_elsewhere.then_some(place);
        Shown { claim, proof, elsewhere, is_share_unknown: proof == Proof::None }
    }

    fn mostly(&mut self, first: &[usize], second: &[usize], third: &[usize]) -> Option<usize> {
        let from = match self.dice.below(10) {
            0 => second,
            1 => third,
            _ => first,
        };
        self.one_of(from)
    }

    fn one_of(&mut self, claims: &[usize]) -> Option<usize> {
        (!claims.is_empty()).then(|| *pick(&mut self.dice, claims))
    }

    fn name(&mut self, case: &Case) -> usize {
        self.dice.below(case.plan.names as u64) as usize
    }

    fn client(&mut self) -> usize {
        self.dice.below(CLIENTS as u64) as usize
    }
}
