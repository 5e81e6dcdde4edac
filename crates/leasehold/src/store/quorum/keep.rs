//! How a lease is kept: renewal by a majority, a node per request; what a clock that leapt costs (B8); and repair of nodes that do
//! not have it (B7).

use redis::Value;
use tokio::sync::oneshot;

use super::node::{Answer, Request};
use super::round::{self, Asked, Place};
use super::{Fleet, only, script};
use crate::claim::{Names, Renewed, Ticket};
use crate::clock::Deadline;
use crate::error::{NodeSaid, Result};
use crate::event::{Event, Loss};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::redis::reply::{fence_read, fence_text};
use crate::sync::{Arc, lock};
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// The most renewals that go to a node as one.
const BATCH_MAX: usize = 256;

/// A lease that is being renewed.
struct Due {
    ticket: Ticket,
    name: Name,
    ttl: Ttl,
    /// What each node said of it, so far.
    found: Vec<Option<Found>>,
}

/// What a node has of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    /// It is there, with this fence, and whether it outlives its client; and it counts.
    Held { fence: u64, detached: bool },
    /// It is there, and does not count.
    Uncounted(NodeSaid),
    /// Nothing is there; whether the lease may be put back.
    Nothing { repairable: bool, node_us: u64 },
    /// Somebody else's.
    Taken,
    /// No answer of use.
    Silent(NodeSaid),
}

impl Fleet {
    pub(super) async fn renew(self: &Arc<Self>, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let batches = due.chunks(BATCH_MAX).map(|batch| self.renew_batch(batch));
        futures_util::future::join_all(batches).await.into_iter().flatten().collect()
    }

    async fn renew_batch(self: &Arc<Self>, batch: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let mut refused = Vec::new();
        let mut due = Vec::new();
        for (ticket, ttl) in batch {
            let fits = only(ticket).and_then(|name| self.settings.check(*ttl).map(|()| name.clone()));
            refused.push(fits.as_ref().err().cloned());
            if let Ok(name) = fits {
                due.push(self.due(ticket, name, *ttl));
            }
        }
        let mut args = Vec::new();
        for Due { ticket, ttl, .. } in &due {
            args.extend([
                ticket.token.expose().to_owned(),
                fence_text(ticket.fence),
                ttl.as_ms().to_string(),
            ]);
        }
        let keys = due.iter().map(|due| self.key(&due.name)).collect();
        let mut renewed = self.prove(due, self.request(&script::RENEW, keys, args)).await.into_iter();
        let lost = || Err(crate::error::Error::Closed);
        refused
            .into_iter()
            .map(|error| error.map_or_else(|| renewed.next().unwrap_or_else(lost), Err))
            .collect()
    }

    pub(super) async fn detach(self: &Arc<Self>, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let name = only(ticket)?.clone();
        self.settings.check(ttl)?;
        let args = vec![ticket.token.expose().to_owned(), fence_text(ticket.fence), ttl.as_ms().to_string()];
        let request = self.request(&script::DETACH, vec![self.key(&name)], args);
        let renewed = self.prove(vec![self.due(ticket, name, ttl)], request).await;
        renewed.into_iter().next().unwrap_or(Err(crate::error::Error::Closed))
    }

    fn due(&self, ticket: &Ticket, name: Name, ttl: Ttl) -> Due {
        Due { ticket: ticket.clone(), name, ttl, found: vec![None; self.nodes.len()] }
    }

    /// Asks every node, and has an answer for each lease as soon as a majority has decided them all. The others' answers are
    /// heard all the same, and what they lack is put back.
    async fn prove(self: &Arc<Self>, mut due: Vec<Due>, request: Request) -> Vec<Result<Renewed>> {
        if due.is_empty() {
            return Vec::new();
        }
        let count = due.len();
        let sent = self.clock.now();
        let (_, mut asked) = round::ask(self.everybody(), request, sent);
        let (answer, answered) = oneshot::channel();
        let fleet = self.clone();
        tokio::spawn(async move {
            let mut answer = Some(answer);
            loop {
                let is_over = !fleet.hear_one(&mut asked, &mut due).await;
                let is_decided = is_over || due.iter().all(|due| fleet.is_decided(due));
                if is_decided && let Some(answer) = answer.take() {
                    let renewed: Vec<_> = due.iter().map(|due| fleet.judged(due, sent)).collect();
                    let _ = answer.send(renewed);
                }
                if is_over {
                    break;
                }
            }
            for due in due {
                fleet.mend(due, sent);
            }
        });
        let closed = || (0..count).map(|_| Err(crate::error::Error::Closed)).collect();
        answered.await.unwrap_or_else(|_| closed())
    }

    /// False when there is nothing more to hear.
    async fn hear_one(&self, asked: &mut Asked, due: &mut [Due]) -> bool {
        let Some((place, answer)) = asked.next().await else { return false };
        self.hear(place, answer, due);
        true
    }

    fn hear(&self, place: Place, answer: Answer, due: &mut [Due]) {
        let heard = match answer {
            Ok(heard) => heard,
            Err(said) => {
                due.iter_mut().for_each(|due| due.found[place] = Some(Found::Silent(said.clone())));
                return;
            }
        };
        for (at, due) in due.iter_mut().enumerate() {
            let found = match heard.values.get(at) {
                Some(Value::BulkString(held)) => {
                    self.counted(place, due, &String::from_utf8_lossy(held), heard.age)
                }
                Some(Value::Int(code @ 0..=1)) => {
                    Found::Nothing { repairable: *code == 0, node_us: heard.node_us }
                }
                Some(Value::Int(_)) => Found::Taken,
                _ => Found::Silent(NodeSaid::NoAnswer { why: "its answer makes no sense".to_owned() }),
            };
            due.found[place] = Some(found);
        }
    }

    /// Whether what a node has of a lease counts.
    fn counted(&self, place: Place, due: &Due, held: &str, age: std::time::Duration) -> Found {
        let detached = held.ends_with('!');
        let Some(fence) = fence_read(held.trim_end_matches('!')) else { return Found::Taken };
        if let Err(said) = self.unless_young(age) {
            return Found::Uncounted(said);
        }
        let since = self.ledger.of(&due.ticket.token).map(|page| page.counted);
        if since.is_some_and(|since| self.nodes[place].has_leapt(since, due.ttl.drift())) {
            return Found::Uncounted(NodeSaid::ClockLeapt);
        }
        Found::Held { fence: fence.get(), detached }
    }

    /// The fence that most nodes have it with, and how many.
    fn most(&self, due: &Due) -> (u64, usize) {
        let fences = || {
            due.found.iter().flatten().filter_map(|found| match found {
                Found::Held { fence, .. } => Some(*fence),
                _ => None,
            })
        };
        fences()
            .map(|fence| (fences().filter(|other| *other == fence).count(), fence))
            .max()
            .map_or((0, 0), |(n, f)| (f, n))
    }

    fn is_decided(&self, due: &Due) -> bool {
        let (_, held) = self.most(due);
        let silent = |found: &Option<Found>| matches!(found, None | Some(Found::Silent(_)));
        held >= self.quorum() || held + due.found.iter().filter(|found| silent(found)).count() < self.quorum()
    }

    fn judged(&self, due: &Due, sent: Deadline) -> Result<Renewed> {
        let (_, held) = self.most(due);
        if held >= self.quorum() {
            let token = &due.ticket.token;
            self.ledger.counted(token, sent, self.gone_by(sent, due.ttl));
            return Ok(Renewed::Until(sent.plus(self.settings.validity(due.ttl))));
        }
        if self.is_decided(due) {
            let leapt = Some(Found::Uncounted(NodeSaid::ClockLeapt));
            let has_leapt = due.found.iter().filter(|found| **found == leapt).count();
            return Ok(Renewed::Lost(match () {
                () if has_leapt > 0 && held + has_leapt >= self.quorum() => Loss::Clock,
                () if due.found.contains(&Some(Found::Taken)) => Loss::Taken,
                () => Loss::Deleted,
            }));
        }
        let said = due.found.iter().map(|found| match found {
            Some(Found::Held { .. }) => NodeSaid::Agreed,
            Some(Found::Uncounted(said) | Found::Silent(said)) => said.clone(),
            Some(Found::Nothing { .. }) => NodeSaid::Gone,
            Some(Found::Taken) => {
                let holder = Owner::new("somebody else").unwrap_or_else(|_| Owner::this_process());
                NodeSaid::Held { holder, remaining: None }
            }
            None => NodeSaid::TimedOut { after: self.settings.timeout },
        });
        let error = self.short("renewed", held, said.collect());
        Err(match error.is_outcome_unknown() {
            true => error,
            // Whoever is not reached now may be in time.
            false => crate::error::Error::Unreachable { store: "redlock", why: error.to_string() },
        })
    }

    /// When every node has answered: puts the lease back where nothing of it is, if a majority has proven it just now.
    fn mend(self: &Arc<Self>, due: Due, sent: Deadline) {
        let (fence, held) = self.most(&due);
        if held < self.quorum() {
            return;
        }
        let lacks = |(_, found): &(Place, &Option<Found>)| !matches!(found, Some(Found::Held { fence: its, .. }) if *its == fence);
        let missing = due.found.iter().enumerate().filter(lacks).map(|(place, _)| place).collect();
        self.note_spread(&due.ticket.token, &due.name, fence, missing);
        let detached =
            due.found.iter().flatten().any(|found| matches!(found, Found::Held { detached: true, .. }));
        let patience = u64::try_from((2 * self.settings.timeout).as_micros()).unwrap_or(0);
        for (place, found) in due.found.iter().enumerate() {
            let Some(Found::Nothing { repairable: true, node_us }) = found else { continue };
            let is_late = self.clock.now() >= sent.plus(self.settings.validity(due.ttl));
            // Whose release we would not hear of is not put back.
            if is_late || !self.ledger.put_back(&due.ticket.token, fence) {
                return;
            }
            let args = vec![
                due.ticket.token.expose().to_owned(),
                format!("{fence:x}"),
                due.ttl.as_ms().to_string(),
                if detached { "!" } else { "" }.to_owned(),
                node_us.saturating_add(patience).to_string(),
            ];
            let request = self.request(&script::REPAIR, vec![self.key(&due.name)], args);
            tracing::debug!(name = %due.name, node = self.nodes[place].name, "putting a lease back on a node");
            // Its answer changes nothing: the node is asked again with the next renewal.
            let _ = round::ask([(place, &self.nodes[place])], request, self.clock.now());
        }
    }

    /// Takes note of which nodes do not hold a lease, and tells if one more would be one too many.
    pub(super) fn note_spread(&self, token: &Token, name: &Name, fence: u64, missing: Vec<Place>) {
        let held = self.nodes.len() - missing.len();
        let is_degraded = held == self.quorum() && !missing.is_empty();
        if !self.ledger.set_degraded(token, is_degraded) {
            return;
        }
        if !is_degraded {
            tracing::info!(%name, held, "no longer degraded");
            return;
        }
        let Ok(fence) = Fence::new(fence) else { return };
        let missing: Vec<String> = missing.into_iter().map(|place| self.nodes[place].name.clone()).collect();
        let event = Event::Degraded {
            names: Names::from(name.clone()),
            fence,
            held,
            nodes: self.nodes.len(),
            missing,
        };
        match lock(&self.events).clone() {
            Some(events) => events.emit(event),
            None => crate::event::record(&event, false),
        }
    }
}
