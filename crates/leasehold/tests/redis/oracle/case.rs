//! `Case`: one sequence on both stores, compared after each operation.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Status, Store};

use super::answer::{Answer, View};
use super::operation::{Operation, Waiting};
use super::plan::Plan;
use super::reference::{Event, Reference};
use super::side::{Raw, Side, Timed, tokens};
use super::subject::Subject;

/// How things stand with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Neither holds nor waits.
    Idle,
    Waits,
    Holds,
}

/// What is known of a claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) standing: Standing,
    /// Asked for at least once.
    pub(super) is_used: bool,
    /// A release was sent, so that its token is not used again.
    pub(super) is_released: bool,
    /// Has waited, so that a request of its client may be under way.
    pub(super) has_waited: bool,
}

/// One sequence.
pub(super) struct Case {
    pub(super) plan: Plan,
    pub(super) known: Vec<Known>,
    /// `None` once the stores have differed.
    reference: Option<Reference>,
    subject: Subject,
    patience: Duration,
    /// What was asked and answered so far, for people.
    trace: Vec<String>,
}

/// What operations come to on the reference, if it decides in one order.
struct Outcome {
    reference: Reference,
    events: Vec<Event>,
    views: Vec<View>,
}

impl Case {
    pub(super) fn new(plan: &Plan, prefix: &str, clients: &[Arc<dyn Store>], patience: Duration) -> Self {
        let tokens = tokens(plan);
        let unknown =
            Known { standing: Standing::Idle, is_used: false, is_released: false, has_waited: false };
        Case {
            plan: plan.clone(),
            known: vec![unknown; plan.requests.len()],
            reference: Some(Reference::new(plan, &tokens, prefix)),
            subject: Subject::new(plan, &tokens, prefix, clients, patience),
            patience,
            trace: Vec::new(),
        }
    }

    /// What was asked and answered, with the claims that occur.
    pub(super) fn trace(&self) -> String {
        let mut text = String::new();
        for (number, request) in self.plan.requests.iter().enumerate() {
            if self.known[number].is_used {
                let _ = writeln!(text, "t{number}: {request}");
            }
        }
        text + &self.trace.join("\n")
    }

    /// The claims that stand so.
    pub(super) fn claims(&self, standing: Standing) -> Vec<usize> {
        (0..self.known.len()).filter(|claim| self.known[*claim].standing == standing).collect()
    }

    /// The holders of a name, and how many wait for it.
    pub(super) fn at(&self, place: usize) -> (Vec<usize>, usize) {
        let is_there = |claim: &usize| self.plan.requests[*claim].names.contains(&place);
        let holders = self.claims(Standing::Holds).into_iter().filter(is_there).collect();
        (holders, self.claims(Standing::Waits).into_iter().filter(is_there).count())
    }

    /// Whether the contract says what becomes of an operation.
    pub(super) fn is_allowed(&self, operation: &Operation) -> bool {
        match operation {
            // A released token is never used again. A claim that waits does so at its own client.
            Operation::Acquire { claim, client, .. } => {
                let known = self.known[*claim];
                let is_own = *client == self.plan.requests[*claim].client;
                !known.is_released && (is_own || known.standing == Standing::Holds)
            }
            // A request of a claim that has waited may be under way at its own client: see `Subject::drain`.
            Operation::Release { shown, client } => {
                let known = self.known[shown.claim];
                let is_own = *client == self.plan.requests[shown.claim].client;
                is_own || !known.has_waited
            }
            // A detached claim is not shortened a second time.
            Operation::Expire { claim, .. } => {
                self.known[*claim].standing == Standing::Holds && !self.subject.side.is_detached(*claim)
            }
            Operation::Together(operations) => operations.iter().all(|operation| self.is_allowed(operation)),
            _ => true,
        }
    }

    /// Has both stores execute an operation, and compares them.
    pub(super) async fn step(&mut self, operation: &Operation) -> Result<(), String> {
        self.trace.push(format!("{operation}"));
        let compared = self.compared(operation).await;
        if let Err(difference) = &compared {
            self.trace.push(format!("    DIFFERENCE: {difference}"));
        }
        compared
    }

    async fn compared(&mut self, operation: &Operation) -> Result<(), String> {
        let operations = match operation {
            Operation::Together(operations) => operations.as_slice(),
            one => std::slice::from_ref(one),
        };
        self.prepare(operations).await?;
        let outcomes = self.outcomes(operations)?;
        let answers = self.subject.send(operations).await?;
        if let [outcome] = outcomes.as_slice() {
            for claim in self.subject.waiting().collect::<Vec<_>>() {
                if !outcome.reference.waits(claim) {
                    self.subject.await_answer(claim).await;
                }
            }
        }
        let since = Instant::now();
        let (side, outcome) = loop {
            self.subject.gather().await;
            // An answer that comes after the look is compared with the next one.
            let statuses = self.subject.look().await?;
            let mut differences = Vec::new();
            let mut same = None;
            for outcome in &outcomes {
                match self.differs(operations, outcome, &answers, &statuses) {
                    Ok(side) => same = same.or(Some((side, outcome))),
                    Err(difference) => differences.push(difference),
                }
            }
            if let Some(same) = same {
                break same;
            }
            let glances: Vec<View> =
                statuses.iter().map(|status| self.subject.side.glance(&status.what)).collect();
            let may_change = outcomes.iter().any(|outcome| self.may_change(outcome, &glances));
            if !may_change || since.elapsed() > self.patience {
                let seen = glances.iter().map(View::to_string).collect::<Vec<_>>().join("; ");
                return Err(format!("{}\n    the server has: {seen}", differences.join("\n    or: ")));
            }
            self.subject.pause().await;
        };
        let events: Vec<String> = outcome.events.iter().map(|event| said(operations, event)).collect();
        let views: Vec<String> = outcome.views.iter().map(View::to_string).collect();
        self.trace.push(format!("    {}\n        {}", events.join("; "), views.join("; ")));
        self.subject.side = side;
        self.subject.answered.clear();
        let place = outcomes.iter().position(|other| std::ptr::eq(other, outcome)).unwrap();
        let outcome = outcomes.into_iter().nth(place).unwrap();
        self.learn(operations, &outcome.events);
        self.reference = Some(outcome.reference);
        Ok(())
    }

    /// Checks that nothing is left of the claims, once all have been released.
    pub(super) async fn finish(&self) -> Result<(), String> {
        let left = |status: &Timed<Option<Status>>| status.what.is_some();
        match self.subject.look().await?.iter().position(left) {
            Some(place) => Err(format!("something is left of {}", super::plan::name(place))),
            None => Ok(()),
        }
    }

    /// A holding that another than its own client ends must have no request under way.
    async fn prepare(&mut self, operations: &[Operation]) -> Result<(), String> {
        let ends_holdings = |operation: &Operation| {
            matches!(
                operation,
                Operation::Evict { .. } | Operation::EvictHolder { .. } | Operation::Expire { .. }
            )
        };
        if !operations.iter().any(ends_holdings) {
            return Ok(());
        }
        let holders = self.claims(Standing::Holds).into_iter();
        let mut clients: Vec<usize> = holders
            .filter(|claim| self.known[*claim].has_waited)
            .map(|claim| self.plan.requests[claim].client)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        self.subject.drain(&clients).await
    }

    /// What the reference comes to: of one operation, one outcome; of several at the same time, one for each order.
    fn outcomes(&mut self, operations: &[Operation]) -> Result<Vec<Outcome>, String> {
        let outcome = |mut reference: Reference, order: &[usize]| {
            let mut events = Vec::new();
            for number in order {
                events.extend(reference.apply(*number, &operations[*number])?);
            }
            let views = reference.views()?;
            Ok(Outcome { reference, events, views })
        };
        let reference = self.reference.take().ok_or("the stores have differed before")?;
        if operations.len() == 1 {
            return Ok(vec![outcome(reference, &[0])?]);
        }
        orders(operations.len()).iter().map(|order| outcome(reference.repeated(), order)).collect()
    }

    /// Compares the answers and the state of the server with an outcome. Returns what is known of the server afterwards.
    fn differs(
        &self,
        operations: &[Operation],
        outcome: &Outcome,
        answers: &[Option<Timed<Raw>>],
        statuses: &[Timed<Option<Status>>],
    ) -> Result<Side, String> {
        let mut side = self.subject.side.clone();
        let mut answered = self.subject.answered.clone();
        for event in &outcome.events {
            let (operation, expected, raw) = match event {
                Event::Answered(_, Answer::Waits) => continue,
                Event::Answered(number, expected) => {
                    let raw = match (&answers[*number], &operations[*number]) {
                        (None, Operation::Acquire { claim, .. }) => answered.remove(claim),
                        (raw, _) => raw.clone(),
                    };
                    (operations[*number].clone(), expected, raw)
                }
                Event::Admitted(claim, expected) => {
                    let operation =
                        Operation::Acquire { claim: *claim, waiting: Waiting::Forever, client: 0 };
                    (operation, expected, answered.remove(claim))
                }
            };
            let Some(raw) = raw else {
                return Err(format!("the reference says `{}`, the server nothing", said(operations, event)));
            };
            let got = side.record(&operation, raw)?;
            if !expected.agrees_with(&got) {
                return Err(format!("`{operation}`: the reference says `{expected}`, the server `{got}`"));
            }
            if let (Operation::Acquire { claim, .. }, Answer::Busy { holder: Some(holder), .. }, 1) =
                (&operation, &got, operations.len())
            {
                let places = side.places_of(*claim);
                if !places.iter().any(|place| outcome.views[*place].holds(*holder)) {
                    return Err(format!(
                        "t{claim} is told of t{holder}, which does not hold what it asks for"
                    ));
                }
            }
        }
        if let Some((claim, raw)) = answered.first_key_value() {
            return Err(format!("the server answers t{claim}, which waits: {:?}", raw.what));
        }
        for (place, (expected, status)) in outcome.views.iter().zip(statuses).enumerate() {
            let got = side.view(status)?;
            if *expected != got {
                let name = super::plan::name(place);
                return Err(format!("{name}: the reference has `{expected}`, the server `{got}`"));
            }
        }
        Ok(side)
    }

    /// Whether a request is still under way: that of a claim which the server has to answer, or of which it knows nothing.
    fn may_change(&self, outcome: &Outcome, glances: &[View]) -> bool {
        self.subject.waiting().any(|claim| {
            let places = self.subject.side.places_of(claim);
            !outcome.reference.waits(claim) || !places.iter().all(|place| glances[*place].has_waiter(claim))
        })
    }

    fn learn(&mut self, operations: &[Operation], events: &[Event]) {
        for event in events {
            match event {
                Event::Admitted(claim, _) => self.known[*claim].standing = Standing::Holds,
                Event::Answered(number, answer) => self.learn_of(&operations[*number], answer),
            }
        }
    }

    fn learn_of(&mut self, operation: &Operation, answer: &Answer) {
        match (operation, answer) {
            (Operation::Acquire { claim, .. }, answer) => {
                let known = &mut self.known[*claim];
                known.is_used = true;
                known.standing = match answer {
                    Answer::Granted { .. } => Standing::Holds,
                    Answer::Waits => Standing::Waits,
                    _ => Standing::Idle,
                };
                known.has_waited |= *answer == Answer::Waits;
            }
            (Operation::Release { shown, .. }, _) => {
                let known = &mut self.known[shown.claim];
                (known.is_used, known.is_released) = (true, true);
                if shown.elsewhere.is_none() {
                    known.standing = Standing::Idle;
                }
            }
            (Operation::Expire { claim, .. }, _) => self.known[*claim].standing = Standing::Idle,
            (_, Answer::Evicted(claims)) => {
                claims.iter().for_each(|claim| self.known[*claim].standing = Standing::Idle);
            }
            _ => {}
        }
    }
}

/// An event, for people.
fn said(operations: &[Operation], event: &Event) -> String {
    match event {
        Event::Answered(_, answer) if operations.len() == 1 => answer.to_string(),
        Event::Answered(number, answer) => format!("{}: {answer}", operations[*number]),
        Event::Admitted(claim, answer) => format!("t{claim} {answer}"),
    }
}

/// Every order of so many.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for number in 0..count {
        orders = orders
            .iter()
            .flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut longer = order.clone();
                    longer.insert(at, number);
                    longer
                })
            })
            .collect();
    }
    orders
}
