//! One node of a quorum: how it is asked, what it says, and what it is still owed.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;

use super::Fleet;
use super::pulse::{Pulse, Reading};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, NodeSaid};
use crate::store::redis::link::{Link, Session, explained};
use crate::store::redis::script::Script;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// So many releases are owed to a node that cannot be reached; beyond that, the oldest are left to their TTLs.
const OWED_MAX: usize = 10_000;

/// Before what a node is owed is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a node is asked: a script, its keys behind the node's own, and its arguments behind the run_id.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) script: &'static LazyLock<Script>,
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) form: Form,
}

/// How a script is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By its digest. The text follows when the node answers that it does not know the script.
    Digest,
    /// By its text: for a node whose answers may come too late to send the text.
    Text,
}

/// What a node answered.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) values: Vec<Value>,
    /// For how long it has forgotten nothing, as far as it can be trusted in that.
    pub(super) age: Duration,
    /// Its clock, in µs.
    pub(super) node_us: u64,
}

/// An answer, or why there is none.
pub(super) type Answer = std::result::Result<Heard, NodeSaid>;

/// A release that a node has not answered.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) request: Arc<Request>,
    /// When its TTL has done it.
    pub(super) until: Deadline,
}

pub(super) struct Node {
    /// Where it is, as the URL says, without what is secret.
    pub(super) name: String,
    /// The key of all that it must not forget.
    memory: String,
    link: Link,
    clock: Clock,
    timeout: Duration,
    pulse: Mutex<Pulse>,
    owed: Mutex<VecDeque<Owed>>,
    owes: Notify,
    /// Set once the log has a line about the node's quarantine.
    is_warned_of: AtomicBool,
}

impl Node {
    pub(super) fn new(name: String, memory: String, link: Link, clock: Clock, timeout: Duration) -> Self {
        let (pulse, owed, owes) = (Mutex::default(), Mutex::default(), Notify::new());
        let is_warned_of = AtomicBool::new(false);
        Node { name, memory, link, clock, timeout, pulse, owed, owes, is_warned_of }
    }

    /// Ends when it is known whether it can be reached.
    pub(super) async fn tried(&self) {
        self.link.tried().await;
    }

    /// Whether the first attempt to connect to the node is still under way. The quorum is opened without it, and requests
    /// that a client makes before its end wait for it in the background.
    pub(super) fn is_joining(&self) -> bool {
        self.link.is_first_attempt()
    }

    /// A connection to the node. Waits for the first attempt to connect, and for no later one.
    pub(super) async fn first_session(&self) -> std::result::Result<Arc<Session>, NodeSaid> {
        if self.is_joining() {
            self.tried().await;
        }
        self.session()
    }

    /// A connection to it, if there is one now: nobody waits for a node that is not there.
    pub(super) fn session(&self) -> std::result::Result<Arc<Session>, NodeSaid> {
        self.link.ready().map_err(|error| NodeSaid::NotReached { why: why(error) })
    }

    /// Asks it over this connection, and no other. It is asked for certain once this has been polled.
    pub(super) async fn ask(&self, session: &Session, request: &Request, sent: Deadline) -> Answer {
        self.ask_by(request.form, session, request, sent).await
    }

    async fn ask_by(&self, form: Form, session: &Session, request: &Request, sent: Deadline) -> Answer {
        let write = |to: &mut Cmd| {
            to.arg(request.keys.len() + 1).arg(&self.memory).arg(&request.keys);
            to.arg(&session.run_id).arg(&request.args);
        };
        let value = match form {
            Form::Digest => self.link.run(session, request.script, write).await,
            Form::Text => self.link.run_by_text(session, request.script, write).await,
        };
        let value = value.map_err(|error| self.silence(error))?;
        let received = self.clock.now();
        let odd = || NodeSaid::NoAnswer { why: "its answer makes no sense".to_owned() };
        let Value::Array(values) = value else { return Err(odd()) };
        let mut values = values.into_iter();
        let (Some(Value::Int(node_us)), Some(Value::Int(age_ms))) = (values.next(), values.next()) else {
            return Err(odd());
        };
        let (node_us, says) = match (u64::try_from(node_us), u64::try_from(age_ms)) {
            (Ok(node_us), Ok(age_ms)) => (node_us, Duration::from_millis(age_ms)),
            _ => return Err(odd()),
        };
        let mut pulse = lock(&self.pulse);
        pulse.beat(&session.run_id, Reading { sent, received, node_us }, says);
        Ok(Heard { values: values.collect(), age: pulse.age().min(says), node_us })
    }

    /// A command that is no script.
    pub(super) async fn command(&self, command: &Cmd) -> std::result::Result<Value, NodeSaid> {
        let session = self.first_session().await?;
        self.link.command(&session, command).await.map_err(|error| self.silence(error))
    }

    fn silence(&self, error: RedisError) -> NodeSaid {
        if error.is_timeout() {
            return NodeSaid::TimedOut { after: self.timeout };
        }
        match explained(error) {
            Error::Refused { why, .. } => NodeSaid::Refused { why },
            error => NodeSaid::NoAnswer { why: why(error) },
        }
    }

    /// What its clock says now, in µs, as far as is known.
    pub(super) fn node_us(&self, now: Deadline) -> Option<u64> {
        lock(&self.pulse).node_us(now)
    }

    /// Whether its clock was set forward by more than that after what it was asked then.
    pub(super) fn has_leapt(&self, since: Deadline, allowed: Duration) -> bool {
        lock(&self.pulse).has_leapt(since, allowed)
    }

    /// For how long it has forgotten nothing, as far as is known.
    pub(super) fn age(&self) -> Duration {
        lock(&self.pulse).age()
    }

    /// True for the first call only.
    pub(super) fn is_first_warning(&self) -> bool {
        !self.is_warned_of.swap(true, Ordering::Relaxed)
    }

    /// Has a release sent when it can be.
    pub(super) fn owe(&self, debt: Owed) {
        let mut owed = lock(&self.owed);
        if owed.len() == OWED_MAX {
            owed.pop_front();
        }
        owed.push_back(debt);
        self.owes.notify_one();
    }

    /// Greets it on each new connection, so that a node that forgot is known as such from then on, and gives it what it is owed.
    pub(super) async fn tend(self: Arc<Self>, fleet: Arc<Fleet>) {
        let (mut generation, mut pause) = (0, PAUSE_MIN);
        loop {
            tokio::select! {
                biased;
                () = self.link.newer_than(generation) => {
                    let Ok(session) = self.link.ready() else { continue };
                    generation = session.generation;
                    let _ = self.ask(&session, &fleet.greeting(), self.clock.now()).await;
                    fleet.warn_once_of_quarantine(&self);
                    if let Err(error) = fleet.check_for_twins() {
                        tracing::warn!("{error}");
                    }
                }
                () = self.owes.notified() => {}
            }
            match self.pay().await {
                true => pause = PAUSE_MIN,
                false => {
                    self.clock.sleep_until(self.clock.now().plus(pause)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.owes.notify_one();
                }
            }
        }
    }

    /// Whether nothing is owed any more that could be sent now.
    async fn pay(&self) -> bool {
        loop {
            let Some(debt) = lock(&self.owed).pop_front() else { return true };
            if self.clock.now() >= debt.until {
                continue;
            }
            // Without a connection it waits for the next, which begins with this.
            let Ok(session) = self.session() else {
                lock(&self.owed).push_front(debt);
                return true;
            };
            // What it refuses once it refuses again.
            let answer = self.ask_by(Form::Text, &session, &debt.request, self.clock.now()).await;
            if matches!(answer, Err(said) if !matches!(said, NodeSaid::Refused { .. })) {
                lock(&self.owed).push_front(debt);
                return false;
            }
        }
    }
}

fn why(error: Error) -> String {
    match error {
        Error::Unreachable { why, .. } | Error::Refused { why, .. } | Error::Untrusted { why, .. } => why,
        error => error.to_string(),
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}
