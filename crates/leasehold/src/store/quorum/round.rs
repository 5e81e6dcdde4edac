//! All nodes at once: one request to each, and their answers as they come.

use std::collections::BTreeMap;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::node::{Answer, Node, Request};
use crate::clock::{Clock, Deadline};
use crate::error::NodeSaid;
use crate::store::redis::link::Session;
use crate::sync::{Arc, Mutex, lock};

/// Which of the nodes, as the URL lists them.
pub(super) type Place = usize;

/// The other nodes have four times as long as the quorum took, within these bounds.
const LAST_CALL_MIN: Duration = Duration::from_millis(20);
const LAST_CALL_MAX: Duration = Duration::from_millis(250);

type Answers = FuturesUnordered<BoxFuture<'static, (Place, Answer)>>;

/// The answers to one request, each once, in the order in which they come. It ends when every node has answered or was given up.
pub(super) struct Asked {
    answers: UnboundedReceiver<(Place, Answer)>,
    /// Over which connections.
    pub(super) over: Sessions,
}

/// The connection over which each node was asked. A node that was still joining is added when it is asked.
#[derive(Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<BTreeMap<Place, Arc<Session>>>>);

impl Sessions {
    fn add(&self, place: Place, session: &Arc<Session>) {
        lock(&self.0).insert(place, session.clone());
    }

    fn of(&self, place: Place) -> Option<Arc<Session>> {
        lock(&self.0).get(&place).cloned()
    }
}

impl Asked {
    pub(super) async fn next(&mut self) -> Option<(Place, Answer)> {
        self.answers.recv().await
    }

    pub(super) fn into_stream(mut self) -> impl Stream<Item = (Place, Answer)> + Unpin {
        futures_util::stream::poll_fn(move |context| self.answers.poll_recv(context))
    }
}

/// Collects the answers of `count` nodes, by place. Once `quorum` of them are good, the other nodes have a short time left:
/// their answers complete the picture, and a node that is stalled must not hold it up.
pub(super) async fn collect<T>(
    mut answers: impl Stream<Item = (Place, Result<T, NodeSaid>)> + Unpin,
    count: usize,
    quorum: usize,
    clock: &Clock,
) -> Vec<Result<T, NodeSaid>> {
    let start = clock.now();
    let mut all: Vec<Option<Result<T, NodeSaid>>> = (0..count).map(|_| None).collect();
    let (mut good, mut last_call) = (0, None);
    loop {
        let next = match last_call {
            None => answers.next().await,
            Some(until) => clock.until(until, answers.next()).await.flatten(),
        };
        let Some((place, answer)) = next else { break };
        good += usize::from(answer.is_ok());
        all[place] = Some(answer);
        if good >= quorum && last_call.is_none() {
            let now = clock.now();
            last_call = Some(last_call_after(start, now));
        }
    }
    let late = || Err(NodeSaid::TimedOut { after: clock.now().since(start) });
    all.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
}

/// How long the other nodes have once a quorum has answered at `now` what was asked at `start`.
pub(super) fn last_call_after(start: Deadline, now: Deadline) -> Deadline {
    now.plus((4 * now.since(start)).clamp(LAST_CALL_MIN, LAST_CALL_MAX))
}

pub(super) fn ask<'a>(
    nodes: impl IntoIterator<Item = (Place, &'a Arc<Node>)>,
    request: Request,
    sent: Deadline,
) -> (Arc<Request>, Asked) {
    ask_after(&Sessions::default(), nodes, request, sent)
}

/// Asks these nodes. When this returns, every request that can be sent is on its way, in front of all that is asked later;
/// and whoever stops listening to the answers does not stop the requests.
///
/// A node to which there is no connection any more is asked over the one of before, which may be slow and not dead: what was
/// asked over it is executed first. A node that is still joining is asked as soon as it has joined. A release may overtake its
/// claim there, and bars it: see `scripts/release.lua`.
pub(super) fn ask_after<'a>(
    before: &Sessions,
    nodes: impl IntoIterator<Item = (Place, &'a Arc<Node>)>,
    request: Request,
    sent: Deadline,
) -> (Arc<Request>, Asked) {
    let request = Arc::new(request);
    let (sender, answers) = unbounded_channel();
    let voters: Arc<Voters> = Arc::default();
    let over = Sessions::default();
    let mut under_way: Answers = FuturesUnordered::new();
    for (place, node) in nodes {
        let (node, request, voters) = (node.clone(), request.clone(), voters.clone());
        if node.is_joining() {
            let over = over.clone();
            under_way.push(Box::pin(async move {
                let session = node.first_session().await.and_then(|session| voters.admit(session, &node));
                match session {
                    Ok(session) => {
                        over.add(place, &session);
                        (place, node.ask(&session, &request, sent).await)
                    }
                    Err(said) => (place, Err(said)),
                }
            }));
            continue;
        }
        let session = node.session().or_else(|said| before.of(place).ok_or(said));
        match session.and_then(|session| voters.admit(session, &node)) {
            Ok(session) => {
                over.add(place, &session);
                under_way.push(Box::pin(async move { (place, node.ask(&session, &request, sent).await) }));
            }
            Err(said) => drop(sender.send((place, Err(said)))),
        }
    }
    send(&mut under_way, &sender);
    if !under_way.is_empty() {
        tokio::spawn(async move {
            while let Some(answer) = under_way.next().await {
                let _ = sender.send(answer);
            }
        });
    }
    (request, Asked { answers, over })
}

/// The servers that one request goes to, by run_id: two nodes that are one server have one vote.
#[derive(Default)]
struct Voters(Mutex<Vec<(String, String)>>);

impl Voters {
    fn admit(&self, session: Arc<Session>, node: &Node) -> Result<Arc<Session>, NodeSaid> {
        let mut voters = lock(&self.0);
        if let Some((_, other)) = voters.iter().find(|(run_id, _)| *run_id == session.run_id) {
            return Err(NodeSaid::Refused { why: format!("it is the same server as {other}") });
        }
        voters.push((session.run_id.clone(), node.name.clone()));
        Ok(session)
    }
}

/// Polls each once, which is what sends it.
fn send(under_way: &mut Answers, sender: &UnboundedSender<(Place, Answer)>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while let Poll::Ready(Some(answer)) = under_way.poll_next_unpin(&mut context) {
        let _ = sender.send(answer);
    }
}
