//! All nodes at once: one request to each, and their answers as they come.

use std::task::Poll;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::node::{Answer, Node, Request};
use crate::clock::Deadline;
use crate::error::NodeSaid;
use crate::store::redis::link::Session;
use crate::sync::Arc;

/// Which of the nodes, as the URL lists them.
pub(super) type Place = usize;

type Answers = FuturesUnordered<BoxFuture<'static, (Place, Answer)>>;

/// The answers to one request, each once, in the order in which they come. It ends when every node has answered or was given up.
pub(super) struct Asked {
    answers: UnboundedReceiver<(Place, Answer)>,
    /// Over which connections.
    pub(super) over: Sessions,
}

pub(super) type Sessions = Vec<(Place, Arc<Session>)>;

impl Asked {
    pub(super) async fn next(&mut self) -> Option<(Place, Answer)> {
        self.answers.recv().await
    }

    /// All of them, by place.
    pub(super) async fn all(mut self, count: usize) -> Vec<Answer> {
        let mut all: Vec<Option<Answer>> = (0..count).map(|_| None).collect();
        while let Some((place, answer)) = self.next().await {
            all[place] = Some(answer);
        }
        let gone = || Err(NodeSaid::NoAnswer { why: "the client was closed".to_owned() });
        all.into_iter().map(|answer| answer.unwrap_or_else(gone)).collect()
    }
}

pub(super) fn ask<'a>(
    nodes: impl IntoIterator<Item = (Place, &'a Arc<Node>)>,
    request: Request,
    sent: Deadline,
) -> (Arc<Request>, Asked) {
    ask_after(&Vec::new(), nodes, request, sent)
}

/// Asks these nodes. When this returns, every request that can be sent is on its way, in front of all that is asked later;
/// and whoever stops listening to the answers does not stop the requests.
///
/// A node to which there is no connection any more is asked over the one of before, which may be slow and not dead: what was
/// asked over it is executed first.
pub(super) fn ask_after<'a>(
    before: &Sessions,
    nodes: impl IntoIterator<Item = (Place, &'a Arc<Node>)>,
    request: Request,
    sent: Deadline,
) -> (Arc<Request>, Asked) {
    let request = Arc::new(request);
    let (sender, answers) = unbounded_channel();
    let mut met: Vec<(Arc<Session>, &str)> = Vec::new();
    let mut over: Sessions = Vec::new();
    let mut under_way: Answers = FuturesUnordered::new();
    for (place, node) in nodes {
        let earlier = || before.iter().find(|(other, _)| *other == place).map(|(_, session)| session.clone());
        let session = node.session().or_else(|said| earlier().ok_or(said)).and_then(|session| {
            match twin(&met, &session) {
                // Two names of one server are one vote.
                Some(other) => Err(NodeSaid::Refused { why: format!("it is the same server as {other}") }),
                None => Ok(session),
            }
        });
        match session {
            Ok(session) => {
                met.push((session.clone(), &node.name));
                over.push((place, session.clone()));
                let (node, request) = (node.clone(), request.clone());
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

fn twin<'a>(met: &[(Arc<Session>, &'a str)], session: &Session) -> Option<&'a str> {
    met.iter().find(|(other, _)| other.run_id == session.run_id).map(|(_, name)| *name)
}

/// Polls each once, which is what sends it.
fn send(under_way: &mut Answers, sender: &UnboundedSender<(Place, Answer)>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while let Poll::Ready(Some(answer)) = under_way.poll_next_unpin(&mut context) {
        let _ = sender.send(answer);
    }
}
