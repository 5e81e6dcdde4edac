//! Claims and releases that are under way at the same moment go to the server as one, which costs both sides much less. A
//! request that is alone goes at once, and none waits for others to come.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::keys::Keys;
use super::link::{Link, Session, explained};
use super::script;
use crate::claim::Names;
use crate::clock::Clock;
use crate::name::Name;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::token::Token;

/// The most that go as one: nobody else is served meanwhile. And the least there may be.
const TOGETHER_MAX: usize = 64;
const TOGETHER_MIN: usize = 8;

/// How many such are under way at once.
const PARTS_MAX: usize = 2;

/// For how long the next is kept back for these.
const PATIENCE: Duration = Duration::from_millis(10);

type Answer = Result<Value, RedisError>;

/// What is asked for a token.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Take(Terms),
    Release {
        /// For how long ours are to keep off then, in ms; if at all.
        moment: Option<&'static str>,
        /// What stands in the key for a share of one name, if that is what it has.
        share: Option<String>,
    },
}

impl Request {
    /// Whether it may go with others.
    fn goes_together(&self) -> bool {
        !matches!(self, Request::Release { moment: Some(_), .. })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) ttl_ms: u64,
    /// In the server's µs.
    pub(super) not_after: u64,
    pub(super) lowest: u64,
    /// One name, with one fence: what most ask for.
    pub(super) is_plain: bool,
    pub(super) text: String,
}

struct Asked {
    session: Arc<Session>,
    name: Name,
    token: Token,
    request: Request,
    answer: oneshot::Sender<Answer>,
}

pub(super) struct Together {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    link: Arc<Link>,
    keys: Arc<Keys>,
    clock: Clock,
    channel: String,
    asked: Mutex<Vec<Asked>>,
    bell: Notify,
    under_way: AtomicU64,
}

/// Counts one that is under way.
struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Together {
    pub(super) fn new(link: Arc<Link>, keys: Arc<Keys>, clock: Clock, channel: String) -> Self {
        let shared = Arc::new(Shared {
            link,
            keys,
            clock,
            channel,
            asked: Mutex::default(),
            bell: Notify::new(),
            under_way: AtomicU64::new(0),
        });
        let task = tokio::spawn(drive(shared.clone())).abort_handle();
        Together { shared, task }
    }

    /// What the script of a claim or a release answers.
    pub(super) async fn ask(
        &self,
        session: &Arc<Session>,
        names: &Names,
        token: &Token,
        request: Request,
    ) -> Answer {
        let shared = &*self.shared;
        let others = shared.under_way.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(&shared.under_way);
        if let (Some(name), 1.., true) = (names.only(), others, request.goes_together()) {
            let (answer, answered) = oneshot::channel();
            let asked = Asked {
                session: session.clone(),
                name: name.clone(),
                token: token.clone(),
                request: request.clone(),
                answer,
            };
            if shared.put(asked) {
                shared.bell.notify_one();
            }
            match answered.await {
                // To be asked alone.
                Ok(Ok(Value::Int(0))) => {}
                Ok(answer) => return answer,
                Err(_) => return Err(RedisError::from((ErrorKind::Io, "the client was closed"))),
            }
        }
        shared.ask_alone(session, names, token, &request).await
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends what has gathered, in parts: while the server is at one, this client is at the answers to another.
async fn drive(shared: Arc<Shared>) {
    let mut sent = FuturesUnordered::new();
    let mut gathered: VecDeque<Asked> = VecDeque::new();
    let mut waits_until = shared.clock.now();
    loop {
        tokio::select! {
            biased;
            Some(()) = sent.next() => {}
            () = shared.bell.notified() => {
                // Whoever is about to ask comes along.
                tokio::task::yield_now().await;
                gathered.extend(std::mem::take(&mut *lock(&shared.asked)));
            }
            // What is under way for so long keeps nobody from asking.
            () = shared.clock.sleep_until(waits_until), if !gathered.is_empty() => {
                sent.push(shared.send(part(&mut gathered, TOGETHER_MAX)));
            }
        }
        // A third of all, so that there is always one more on its way.
        let third = usize::try_from(shared.under_way.load(Ordering::Relaxed)).unwrap_or(0).div_ceil(3);
        while sent.len() < PARTS_MAX && !gathered.is_empty() {
            sent.push(shared.send(part(&mut gathered, third.clamp(TOGETHER_MIN, TOGETHER_MAX))));
            waits_until = shared.clock.now().plus(PATIENCE);
        }
    }
}

/// The first of them, as far as they go over one connection and somebody still wants to know.
fn part(gathered: &mut VecDeque<Asked>, most: usize) -> Vec<Asked> {
    let mut part: Vec<Asked> = Vec::new();
    while part.len() < most
        && let Some(next) = gathered.front()
        && part.first().is_none_or(|first| first.session.generation == next.session.generation)
    {
        part.extend(gathered.pop_front().filter(|asked| !asked.answer.is_closed()));
    }
    part
}

impl Shared {
    /// Says whether it is the first.
    fn put(&self, one: Asked) -> bool {
        let mut asked = lock(&self.asked);
        asked.push(one);
        asked.len() == 1
    }

    async fn ask_alone(&self, session: &Session, names: &Names, token: &Token, request: &Request) -> Answer {
        let script = match request {
            Request::Take(_) => &script::ACQUIRE,
            Request::Release { moment: None, share: Some(_) } => &script::RELEASE_SHARE,
            Request::Release { .. } => &script::RELEASE,
        };
        let write = |to: &mut Cmd| {
            self.keys.write_all(names, to);
            to.arg(token.expose());
            match request {
                Request::Take(terms) => to
                    .arg(terms.ttl_ms)
                    .arg(terms.not_after)
                    .arg(terms.lowest)
                    .arg(&terms.text)
                    .arg(&self.channel),
                Request::Release { moment: None, share } => to.arg(share.as_deref()),
                Request::Release { moment, .. } => to.arg(*moment),
            };
        };
        self.link.run(session, script, write).await
    }

    async fn send(&self, asked: Vec<Asked>) {
        let Some(session) = asked.first().map(|asked| &asked.session) else { return };
        let answer = self.link.run(session, &script::TOGETHER, |to| self.write_together(&asked, to)).await;
        match answer {
            Ok(Value::Array(answers)) if answers.len() == asked.len() => {
                for (asked, answer) in asked.into_iter().zip(answers) {
                    let _ = asked.answer.send(Ok(answer));
                }
            }
            answer => {
                let odd = || RedisError::from((ErrorKind::UnexpectedReturnType, "its answer makes no sense"));
                let error = answer.err().unwrap_or_else(odd);
                let is_known = !explained(error.clone()).is_outcome_unknown();
                for asked in asked {
                    // What the server refuses it may refuse for one of them only.
                    let answer = if is_known { Ok(Value::Int(0)) } else { Err(error.clone()) };
                    let _ = asked.answer.send(answer);
                }
            }
        }
    }

    fn write_together(&self, asked: &[Asked], to: &mut Cmd) {
        self.keys.write_count(asked.len(), to);
        asked.iter().for_each(|asked| self.keys.write(&asked.name, to));
        let takes = || {
            asked.iter().filter_map(|asked| match &asked.request {
                Request::Take(terms) => Some(terms),
                Request::Release { .. } => None,
            })
        };
        to.arg(takes().map(|terms| terms.not_after).min().unwrap_or(0));
        to.arg(takes().map(|terms| terms.lowest).max().unwrap_or(0));
        to.arg(takes().filter(|terms| terms.is_plain).count());
        to.arg(&self.channel);
        for asked in asked {
            to.arg(asked.token.expose());
            match &asked.request {
                Request::Take(terms) => to.arg(terms.ttl_ms).arg(&terms.text),
                Request::Release { share: Some(share), .. } => to.arg("-").arg(share),
                Request::Release { .. } => to.arg(""),
            };
        }
    }
}
