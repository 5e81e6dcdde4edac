//! `Reference`: a sequence on the memory store. Its clock is moved by hand, so that each request is answered at its first poll,
//! or waits for another operation; and a sequence is the same each time it is repeated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::store::memory::Memory;
use leasehold::{Clock, Deadline, Status, Store, Token};

use super::BRIEF;
use super::answer::{Answer, View};
use super::operation::{Operation, Waiting};
use super::plan::{CLIENTS, Plan};
use super::side::{Raw, Side, Timed};

const FENCES_FROM: u64 = 1_000;

/// An answer to one of some operations, in the order in which the store decided.
#[derive(Debug)]
pub(super) enum Event {
    /// To the operation with this number.
    Answered(usize, Answer),
    /// To a claim that waited.
    Admitted(usize, Answer),
}

pub(super) struct Reference {
    pub(super) side: Side,
    clock: Clock,
    waiting: BTreeMap<usize, (Deadline, BoxFuture<'static, Raw>)>,
    made_of: (Plan, Vec<Token>, String),
    log: Vec<Operation>,
}

impl Reference {
    pub(super) fn new(plan: &Plan, tokens: &[Token], prefix: &str) -> Self {
        let clock = Clock::manual();
        let memory = Memory::new(clock.clone());
        // Below the first fence there is one that nothing has.
        memory.preset_last_fence(FENCES_FROM);
        let memory: Arc<dyn Store> = Arc::new(memory);
        let side = Side::new(plan, tokens, prefix, vec![memory; CLIENTS]);
        let made_of = (plan.clone(), tokens.to_vec(), prefix.to_owned());
        Reference { side, clock, waiting: BTreeMap::new(), made_of, log: Vec::new() }
    }

    /// Another one that has had the same operations.
    pub(super) fn repeated(&self) -> Reference {
        let (plan, tokens, prefix) = &self.made_of;
        let mut other = Reference::new(plan, tokens, prefix);
        for operation in &self.log {
            let _ = other.apply(0, operation);
        }
        other
    }

    pub(super) fn waits(&self, claim: usize) -> bool {
        self.waiting.contains_key(&claim)
    }

    /// Its answer to an operation, and the claims it admits, in the order of their fences.
    pub(super) fn apply(&mut self, number: usize, operation: &Operation) -> Result<Vec<Event>, String> {
        self.log.push(operation.clone());
        let answer = self.answer(operation)?;
        let mut events = vec![Event::Answered(number, answer)];
        events.extend(self.admitted()?);
        Ok(events)
    }

    fn answer(&mut self, operation: &Operation) -> Result<Answer, String> {
        let from = self.side.now();
        match operation {
            Operation::Acquire { claim, .. } => drop(self.waiting.remove(claim)),
            Operation::Release { shown, .. } if shown.elsewhere.is_none() => {
                self.waiting.remove(&shown.claim);
            }
            _ => {}
        }
        let mut request = self.side.request(operation);
        let mut raw = request.as_mut().now_or_never();
        match (operation, &raw) {
            (Operation::Acquire { claim, waiting: Waiting::Forever, .. }, None) => {
                self.waiting.insert(*claim, (from, request));
                return Ok(Answer::Waits);
            }
            (Operation::Acquire { waiting: Waiting::Briefly, .. }, None) => {
                self.clock.advance(BRIEF);
                raw = request.as_mut().now_or_never();
            }
            (Operation::Expire { ttl_ms, .. }, Some(Raw::Detached(Ok(leasehold::Renewed::Until(_))))) => {
                self.clock.advance(Duration::from_millis(*ttl_ms));
                raw = Some(Raw::Ended);
            }
            _ => {}
        }
        let what = raw.ok_or_else(|| format!("the reference does not answer `{operation}`"))?;
        self.side.record(operation, Timed { what, from, by: self.side.now() })
    }

    fn admitted(&mut self) -> Result<Vec<Event>, String> {
        let mut found = Vec::new();
        // The first look after the clock has moved is the one that admits.
        self.statuses();
        for (claim, (from, request)) in &mut self.waiting {
            if let Some(raw) = request.as_mut().now_or_never() {
                found.push((*claim, *from, raw));
            }
        }
        let fence = |raw: &Raw| match raw {
            Raw::Acquired(Ok(leasehold::Acquired::Granted(grant))) => Some(grant.fence),
            _ => None,
        };
        found.sort_by_key(|(_, _, raw)| fence(raw));
        let mut events = Vec::new();
        for (claim, from, what) in found {
            self.waiting.remove(&claim);
            let operation = Operation::Acquire { claim, waiting: Waiting::Forever, client: 0 };
            let answer = self.side.record(&operation, Timed { what, from, by: self.side.now() })?;
            events.push(Event::Admitted(claim, answer));
        }
        Ok(events)
    }

    fn statuses(&self) -> Vec<Option<Status>> {
        let status = |name| self.side.stores[0].inspect(name).now_or_never();
        self.side.names.iter().map(|name| status(name).unwrap().unwrap()).collect()
    }

    /// How things stand with each name.
    pub(super) fn views(&self) -> Result<Vec<View>, String> {
        let now = self.side.now();
        let view = |what| self.side.view(&Timed { what, from: now, by: now });
        self.statuses().into_iter().map(view).collect()
    }
}
