//! `Subject`: a sequence on a server. Requests that wait are tasks, which go on while other operations are sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{Acquired, Claim, Deadline, Name, Owner, Renewed, Share, Status, Store, Ticket, Token, Wait};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::operation::{Operation, Waiting};
use super::plan::Plan;
use super::side::{Raw, Side, Timed, seconds};

/// Between two looks at what is about to change.
const PAUSE: Duration = Duration::from_micros(300);

pub(super) struct Subject {
    pub(super) side: Side,
    waiting: BTreeMap<usize, (Deadline, JoinHandle<(Raw, Deadline)>)>,
    /// What waited and was answered, until the answer is compared.
    pub(super) answered: BTreeMap<usize, Timed<Raw>>,
    /// For requests of its own, which no operation is about.
    scratch: Name,
    patience: Duration,
}

impl Subject {
    pub(super) fn new(
        plan: &Plan,
        tokens: &[Token],
        prefix: &str,
        clients: &[Arc<dyn Store>],
        patience: Duration,
    ) -> Self {
        let side = Side::new(plan, tokens, prefix, clients.to_vec());
        let scratch = format!("scratch:{prefix}").parse().unwrap();
        Subject { side, waiting: BTreeMap::new(), answered: BTreeMap::new(), scratch, patience }
    }

    /// Sends some operations at the same time. Returns the answers to those that do not wait; whether the others have to wait
    /// is for [`look`](Subject::look) to see.
    pub(super) async fn send(&mut self, operations: &[Operation]) -> Result<Vec<Option<Timed<Raw>>>, String> {
        for operation in operations {
            match operation {
                Operation::Acquire { claim, .. } => self.stop_waiting(*claim).await?,
                // The release of a claim that waits is a withdrawal: the task is dropped first, as the contract has it.
                Operation::Release { shown, .. } if shown.elsewhere.is_none() => {
                    self.stop_waiting(shown.claim).await?;
                }
                _ => {}
            }
        }
        if let [Operation::Expire { claim, ttl_ms }] = operations {
            return Ok(vec![Some(self.expire(*claim, *ttl_ms, &operations[0]).await?)]);
        }
        let mut requests = Vec::new();
        for operation in operations {
            let (from, request) = (self.side.now(), self.side.request(operation));
            let clock = self.side.stores[0].clock().clone();
            let task = tokio::spawn(async move {
                let raw = request.await;
                (raw, clock.now())
            });
            match operation {
                Operation::Acquire { claim, waiting: Waiting::Forever, .. } => {
                    self.waiting.insert(*claim, (from, task));
                    requests.push(None);
                }
                _ => requests.push(Some((from, task))),
            }
        }
        let mut answers = Vec::new();
        for (operation, request) in operations.iter().zip(requests) {
            let Some((from, task)) = request else {
                answers.push(None);
                continue;
            };
            let answer = timeout(self.patience, task).await;
            let (what, by) = answer.map_err(|_| format!("no answer to `{operation}`"))?.unwrap();
            answers.push(Some(Timed { what, from, by }));
        }
        Ok(answers)
    }

    /// Drops the request of a claim that waits, and does not return before it is dropped.
    async fn stop_waiting(&mut self, claim: usize) -> Result<(), String> {
        let Some((_, task)) = self.waiting.remove(&claim) else { return Ok(()) };
        task.abort();
        match task.await {
            Ok(answer) => Err(format!("t{claim} waits, and was answered: {answer:?}")),
            Err(_) => Ok(()),
        }
    }

    /// Detaches a claim for a short time, and waits until the server says that it has ended.
    async fn expire(
        &mut self,
        claim: usize,
        ttl_ms: u64,
        operation: &Operation,
    ) -> Result<Timed<Raw>, String> {
        let from = self.side.now();
        let no_answer = |_| format!("no answer to `{operation}`");
        let what = timeout(self.patience, self.side.request(operation)).await.map_err(no_answer)?;
        let Raw::Detached(Ok(Renewed::Until(_))) = what else {
            return Ok(Timed { what, from, by: self.side.now() });
        };
        let clock = self.side.stores[0].clock().clone();
        clock.sleep_until(clock.now().plus(Duration::from_millis(ttl_ms))).await;
        let holds = |statuses: &[Timed<Option<Status>>]| {
            statuses.iter().any(|status| self.side.glance(&status.what).holds(claim))
        };
        let ended = async {
            while holds(&self.look().await?) {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Timed { what: Raw::Ended, from, by: self.side.now() })
        };
        timeout(self.patience, ended).await.unwrap_or_else(|_| Err(format!("t{claim} does not end")))
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.waiting.keys().copied()
    }

    /// Waits until a claim is answered, or the patience is over.
    pub(super) async fn await_answer(&mut self, claim: usize) {
        if let Some((from, task)) = self.waiting.get_mut(&claim)
            && let Ok(answer) = timeout(self.patience, task).await
        {
            let (what, by) = answer.unwrap();
            self.answered.insert(claim, Timed { what, from: *from, by });
            self.waiting.remove(&claim);
        }
    }

    /// Takes the answers that have come.
    pub(super) async fn gather(&mut self) {
        let finished = self.waiting.iter().filter(|(_, (_, task))| task.is_finished());
        for claim in finished.map(|(claim, _)| *claim).collect::<Vec<_>>() {
            self.await_answer(claim).await;
        }
    }

    /// How things stand with each name, as the server says at once.
    pub(super) async fn look(&self) -> Result<Vec<Timed<Option<Status>>>, String> {
        let from = self.side.now();
        let looks = join_all(self.side.names.iter().map(|name| self.side.stores[0].inspect(name)));
        let statuses = timeout(self.patience, looks).await.map_err(|_| "no answer to inspect".to_owned())?;
        let by = self.side.now();
        let timed = |status: leasehold::Result<Option<Status>>| {
            let what = status.map_err(|error| format!("inspect failed: {error}"))?;
            Ok(Timed { what, from, by })
        };
        statuses.into_iter().map(timed).collect()
    }

    /// Gives what is under way some time.
    pub(super) async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }

    /// Waits until the requests that these clients have made are executed.
    ///
    /// A claim that waits asks again when it is told to look again. Its grant may be pushed while that request is under way,
    /// and the request is without effect as long as the claim is held. If another client ended the holding before the server
    /// has the request, it would be a new one. A client sends over one connection, so an answer to a request is behind all
    /// that was pushed before, and behind the answers to all requests before: the first round has the claims look again,
    /// the second is behind the tasks that do, and the third behind what these have sent.
    pub(super) async fn drain(&self, clients: &[usize]) -> Result<(), String> {
        let round = |client: &usize| {
            let store = self.side.stores[*client].clone();
            let token = Token::fresh(&Owner::new("scratch").unwrap()).unwrap();
            let names = self.scratch.clone().into();
            let ticket = Ticket { names, token, share: Share::Exclusive, fence: None };
            async move {
                let claim = Claim { ticket, ttl: seconds(60), wait: Wait::Never, fences: 1, detached: false };
                let is_granted = matches!(store.acquire(&claim).await, Ok(Acquired::Granted(_)));
                store.release(&claim.ticket).await.is_ok() && is_granted
            }
        };
        for _ in 0..3 {
            // One after the other, since they ask for one name.
            for client in clients {
                match timeout(self.patience, round(client)).await {
                    Ok(true) => {}
                    _ => return Err("a name of its own cannot be acquired and released".to_owned()),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.waiting.values().for_each(|(_, task)| task.abort());
    }
}
