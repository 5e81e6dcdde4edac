//! The connection: made, lost, and made again for as long as anybody needs it. Each time it is ready for use it is a new
//! *generation*, and whoever waits looks again.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value, cmd,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::address::{Address, without_arguments};
use super::script::Script;
use super::wire::Wire;
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU64, Ordering};

/// After so many requests without an answer in a row a connection is given up: the other end may be gone without a word.
const SILENCES_MAX: u64 = 2;

/// Between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What hears of everything the server says by itself.
pub(super) type Listener = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// One connection, ready for use.
pub(super) struct Session {
    connection: Wire,
    pub(super) generation: u64,
    /// What the server's wall clock said when our clock began, in µs; or less than that, never more.
    origin_us: AtomicU64,
    silences: AtomicU64,
}

pub(super) struct Link {
    /// What is ready, or why nothing is.
    sessions: watch::Receiver<Result<Arc<Session>>>,
    /// The latest generation that is of no use any more. By number, because those who find out are many, and some late:
    /// they must not take the next one for it.
    given_up: watch::Sender<u64>,
    clock: Clock,
    timeout: Duration,
    /// Who makes the next one; nobody where the connection is not ours to make.
    task: Option<AbortHandle>,
}

/// What a connection is made of.
struct Maker {
    address: Address,
    channel: String,
    listener: Listener,
    clock: Clock,
    timeout: Duration,
}

impl Link {
    /// Connects once, so that what is wrong is known at once; and again from then on.
    pub(super) async fn open(
        address: Address,
        channel: String,
        listener: Listener,
        clock: Clock,
        timeout: Duration,
    ) -> Result<Self> {
        let maker = Maker { address, channel, listener, clock: clock.clone(), timeout };
        let (first, pushes) = maker.make(1).await?;
        let (sender, sessions) = watch::channel(Ok(Arc::new(first)));
        let (given_up, heard) = watch::channel(0);
        let task = tokio::spawn(keep(maker, pushes, sender, heard)).abort_handle();
        Ok(Link { sessions, given_up, clock, timeout, task: Some(task) })
    }

    /// Over a connection that somebody else looks after.
    pub(super) async fn over(mut connection: Wire, clock: Clock, timeout: Duration) -> Result<Self> {
        let origin_us = AtomicU64::new(asked_origin_us(&mut connection, &clock).await?);
        let session = Session { connection, generation: 1, origin_us, silences: AtomicU64::new(0) };
        let (sessions, given_up) = (watch::channel(Ok(Arc::new(session))).1, watch::channel(0).0);
        Ok(Link { sessions, given_up, clock, timeout, task: None })
    }

    /// Whether a connection that breaks is followed by another.
    pub(super) fn is_kept(&self) -> bool {
        self.task.is_some()
    }

    /// A connection that is ready; waits for one as long as a request may take.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        if let Ok(session) = &*self.sessions.borrow() {
            return Ok(session.clone());
        }
        let mut sessions = self.sessions.clone();
        let until = self.clock.now().plus(self.timeout);
        tokio::select! {
            biased;
            ready = sessions.wait_for(Result::is_ok) => match ready {
                Ok(ready) => return ready.clone(),
                Err(_) => return Err(unreachable("the connection was closed")),
            },
            () = self.clock.sleep_until(until) => {}
        }
        self.sessions.borrow().clone()
    }

    /// Ends when there is a connection newer than this.
    pub(super) async fn newer_than(&self, generation: u64) {
        let mut sessions = self.sessions.clone();
        let is_newer =
            |session: &Result<Arc<Session>>| session.as_ref().is_ok_and(|it| it.generation > generation);
        if sessions.wait_for(is_newer).await.is_err() {
            std::future::pending().await
        }
    }

    /// Runs a script, with the number of its keys, the keys and the arguments that are written. By its digest, and if the
    /// server has forgotten it, by its text.
    pub(super) async fn run(
        &self,
        session: &Session,
        script: &Script,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut connection = session.connection.clone();
        let mut command = cmd("EVALSHA");
        write(command.arg(&script.digest));
        let mut answer = command.query_async(&mut connection).await;
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            let mut command = cmd("EVAL");
            write(command.arg(&script.source));
            answer = command.query_async(&mut connection).await;
        }
        self.note(session, &answer);
        answer.map_err(|error| named(error, script))
    }

    pub(super) async fn command(&self, session: &Session, command: &redis::Cmd) -> Result<Value, RedisError> {
        let answer = command.query_async(&mut session.connection.clone()).await;
        self.note(session, &answer);
        answer
    }

    /// Several commands at once, which others may come between.
    pub(super) async fn commands(
        &self,
        session: &Session,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Value>, RedisError> {
        let answers = commands.query_async(&mut session.connection.clone()).await;
        self.note(session, &answers);
        answers
    }

    fn note<T>(&self, session: &Session, answer: &Result<T, RedisError>) {
        match answer {
            Err(error) if error.is_timeout() => {
                if session.silences.fetch_add(1, Ordering::Relaxed) + 1 >= SILENCES_MAX {
                    self.given_up.send_if_modified(|given_up| {
                        let is_news = *given_up < session.generation;
                        *given_up = (*given_up).max(session.generation);
                        is_news
                    });
                }
            }
            _ => session.silences.store(0, Ordering::Relaxed),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

impl Session {
    /// The server's clock at a moment of ours, in µs, as far as is known.
    pub(super) fn server_us(&self, at: Deadline) -> u64 {
        self.origin_us.load(Ordering::Relaxed).saturating_add(at.as_ns() / 1_000)
    }

    /// Learns from what the server's clock said, in µs, some time before this moment of ours. A clock that was set forward
    /// would otherwise have every request come too late, for as long as this connection lasts.
    pub(super) fn heard_us(&self, server_us: u64, by: Deadline) {
        self.origin_us.fetch_max(origin_us(server_us, by), Ordering::Relaxed);
    }
}

impl Maker {
    async fn make(&self, generation: u64) -> Result<(Session, UnboundedReceiver<PushInfo>)> {
        let (pushed, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_push_sender(pushed);
        let client = self.address.client()?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(|error| self.address.explained(error))?;
        let origin_us = AtomicU64::new(asked_origin_us(&mut connection, &self.clock).await?);
        connection.subscribe(&self.channel).await.map_err(explained)?;
        let session =
            Session { connection: Wire::Own(connection), generation, origin_us, silences: AtomicU64::new(0) };
        Ok((session, pushes))
    }
}

async fn asked_origin_us(connection: &mut impl ConnectionLike, clock: &Clock) -> Result<u64> {
    let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await.map_err(explained)?;
    Ok(origin_us(seconds.saturating_mul(1_000_000).saturating_add(micros), clock.now()))
}

/// Of the moments between question and answer, by the latest: then `not_after` errs on the short side, and what is refused
/// for it says what time it is.
fn origin_us(server_us: u64, by: Deadline) -> u64 {
    server_us.saturating_sub(by.as_ns() / 1_000)
}

/// Listens on each connection until it breaks, and makes the next.
async fn keep(
    maker: Maker,
    mut pushes: UnboundedReceiver<PushInfo>,
    sessions: watch::Sender<Result<Arc<Session>>>,
    mut given_up: watch::Receiver<u64>,
) {
    let mut generation = 1;
    let mut pause = Duration::ZERO;
    let mut made = maker.clock.now();
    loop {
        loop {
            tokio::select! {
                push = pushes.recv() => match push {
                    Some(push) if push.kind != PushKind::Disconnection => (maker.listener)(push),
                    _ => break,
                },
                _ = given_up.wait_for(|given_up| *given_up >= generation) => break,
            }
        }
        tracing::warn!("the connection to the redis store is lost; making another");
        let _ = sessions.send_replace(Err(unreachable("the connection to it is lost")));
        generation += 1;
        // At once, unless it did not last: a server may let everybody in and throw them out again.
        if maker.clock.now().since(made) > PAUSE_MAX {
            pause = Duration::ZERO;
        }
        pushes = loop {
            // Not all at the same moment.
            let jitter = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
            let pause_now = pause.mul_f64(0.5 + jitter / 2.0);
            maker.clock.sleep_until(maker.clock.now().plus(pause_now)).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            match maker.make(generation).await {
                Ok((session, pushes)) => {
                    let _ = sessions.send_replace(Ok(Arc::new(session)));
                    break pushes;
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to the redis store yet");
                    let _ = sessions.send_replace(Err(error));
                }
            }
        };
        made = maker.clock.now();
        tracing::info!(generation, "connected to the redis store again");
    }
}

fn unreachable(why: &str) -> Error {
    Error::Unreachable { store: "redis", why: why.to_owned() }
}

/// Whether the server says that it will be ready later.
pub(super) fn is_passing(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
    matches!(error.kind(), ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain))
        || error.code() == Some("BUSY")
}

/// What a user may not do inside a script is an error of its own kind, like that outside. Redis does not say which command it
/// was that is not allowed. It says in which line, though.
fn named(error: RedisError, script: &Script) -> RedisError {
    let said = error.detail().unwrap_or_default();
    let why = if let Some((_, why)) = said.split_once("ACL failure in script: ") {
        without_place(why).to_owned()
    } else if said.contains("The user executing the script can't run this command") {
        let line = said.rsplit_once("user_script:").map_or("", |(_, line)| line.trim_end_matches('.'));
        let text = line.parse().ok().and_then(|line: usize| script.source.lines().nth(line.checked_sub(1)?));
        let calls = text.unwrap_or_default().split("call('").skip(1);
        let commands: Vec<String> = calls
            .filter_map(|call| call.split('\'').next())
            .map(|command| format!("`{}`", command.to_ascii_lowercase()))
            .collect();
        match commands.is_empty() {
            false => format!("this user may not run {}", commands.join(" or ")),
            true => "this user may not run all that the scripts do".to_owned(),
        }
    } else if said.contains("The user executing the script can't") {
        without_place(said).to_owned()
    } else {
        return error;
    };
    RedisError::from((ErrorKind::Server(ServerErrorKind::NoPerm), "no right", why))
}

/// Without the script it was in, whose digest says nothing to anybody.
fn without_place(said: &str) -> &str {
    let place = said.contains("@user_script").then(|| said.rsplit_once(" script: ")).flatten();
    place.map_or(said, |(said, _)| said).trim_end_matches('.')
}

/// What the server or the network said, for people.
pub(super) fn explained(error: RedisError) -> Error {
    let refused = |advice: &str| {
        let said = error.detail().map_or_else(
            || error.to_string(),
            |detail| format!("{} {detail}", error.code().unwrap_or("ERR")),
        );
        let said = without_arguments(without_place(&said));
        let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        Error::Refused { store: "redis", why: format!("{said}{advice}") }
    };
    match error.kind() {
        _ if error.is_timeout() => unreachable("no answer in time"),
        ErrorKind::AuthenticationFailed => refused("check user and password"),
        ErrorKind::RESP3NotSupported => refused("it is too old: Redis 6 or later is needed"),
        ErrorKind::Server(ServerErrorKind::NoPerm) => refused("give this user the right to it (ACL)"),
        ErrorKind::Server(ServerErrorKind::ReadOnly) => refused("this server is a replica; name its master"),
        ErrorKind::Server(ServerErrorKind::BusyLoading) => refused("wait until it has loaded its data"),
        _ => match error.code() {
            Some("BUSY") => refused("somebody's script keeps it busy"),
            Some("OOM") => refused("it is out of memory; raise maxmemory"),
            Some("NOAUTH") => refused("it wants a password"),
            Some("WRONGPASS") => refused("check user and password"),
            Some("NOREPLICAS") => refused("too few of its replicas are there for it to take a write"),
            Some("MISCONF") => refused("it cannot write its data down; see its log"),
            Some(_) => refused(""),
            // Not the server's word: whether it has executed anything is unknown.
            None => unreachable(&error.to_string()),
        },
    }
}
