//! The connection: made, lost, and made again for as long as anybody needs it. Each time it is ready for use it is a new
//! *generation*, and whoever waits looks again.

use std::time::Duration;

use redis::aio::{AsyncPushSender, ConnectionLike, SendError};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisError, ServerErrorKind, Value,
    cmd,
};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::address::{Address, without_arguments};
use super::script::Script;
use super::wire::Wire;
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::jitter::jitter;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// After so many requests without an answer in a row a connection is given up: the other end may be gone without a word.
const SILENCES_MAX: u64 = 2;

/// Between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What hears of everything the server says by itself. It is called where the connection is read: it must not wait.
pub(in crate::store) type Listener = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// What one connection is listened on with.
struct Ear {
    listener: Listener,
    state: Arc<Listened>,
}

/// How it is with listening on a connection.
#[derive(Debug, Default)]
struct Listened {
    /// Rung when nothing more will be heard.
    is_over: Notify,
    /// It was given up: what it still says is not heard.
    is_given_up: AtomicBool,
}

impl AsyncPushSender for Ear {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        if push.kind == PushKind::Disconnection {
            self.state.is_over.notify_one();
        } else if !self.state.is_given_up.load(Ordering::Acquire) {
            (self.listener)(push);
        }
        Ok(())
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.state.is_over.notify_one();
    }
}

/// One connection, ready for use.
pub(in crate::store) struct Session {
    connection: Wire,
    pub(in crate::store) generation: u64,
    /// Which life of the server it leads to, where that was asked for: a connection never leads to another.
    pub(in crate::store) run_id: String,
    /// What the server's wall clock said when our clock began, in µs; or less than that, never more.
    origin_us: AtomicU64,
    silences: AtomicU64,
}

/// Why there is no connection.
#[derive(Debug, Clone)]
struct Down {
    error: Error,
    /// The server rejected the user, the password or a right that every connection needs. The next attempts meet the
    /// same answer until an operator changes it, so that nothing waits for them.
    is_denied: bool,
}

impl From<Error> for Down {
    fn from(error: Error) -> Self {
        Down { error, is_denied: false }
    }
}

pub(in crate::store) struct Link {
    /// What is ready, or why nothing is.
    sessions: watch::Receiver<Result<Arc<Session>, Down>>,
    /// The latest generation that is of no use any more. By number, because those who find out are many, and some late:
    /// they must not take the next one for it.
    given_up: watch::Sender<u64>,
    clock: Clock,
    timeout: Duration,
    /// Who makes the next one; nobody where the connection is not ours to make.
    task: Option<AbortHandle>,
}

/// What a connection is made of.
pub(in crate::store) struct Maker {
    address: Address,
    /// What is subscribed to: this client's own channel, and that of notices.
    channels: Vec<String>,
    listener: Listener,
    clock: Clock,
    timeout: Duration,
    /// How long it may take to connect.
    connect_timeout: Duration,
    /// What is at the other end, for the log.
    what: String,
    /// A node of a quorum. Its run_id is asked for, and its errors stand behind its name.
    is_node: bool,
}

impl Link {
    /// Connects once, so that what is wrong is known at once; and again from then on.
    pub(super) async fn open(maker: Maker) -> Result<Self> {
        let (first, listened) = maker.make(1).await.map_err(|down| down.error)?;
        Ok(Link::kept(maker, Ok(Arc::new(first)), Some(listened)))
    }

    /// Connects in the background, be it at the first attempt or later.
    pub(in crate::store) fn start(maker: Maker) -> Self {
        Link::kept(maker, Err(unreachable("not connected yet").into()), None)
    }

    fn kept(maker: Maker, first: Result<Arc<Session>, Down>, listened: Option<Arc<Listened>>) -> Self {
        let (clock, timeout) = (maker.clock.clone(), maker.timeout);
        let (sender, sessions) = watch::channel(first);
        let (given_up, heard) = watch::channel(0);
        let task = tokio::spawn(keep(maker, listened, sender, heard)).abort_handle();
        Link { sessions, given_up, clock, timeout, task: Some(task) }
    }

    /// Over a connection that somebody else looks after.
    pub(super) async fn over(mut connection: Wire, clock: Clock, timeout: Duration) -> Result<Self> {
        let time = asked_time_us(&mut connection).await.map_err(explained)?;
        let origin_us = AtomicU64::new(origin_us(time, clock.now()));
        let (run_id, silences) = (String::new(), AtomicU64::new(0));
        let session = Session { connection, generation: 1, run_id, origin_us, silences };
        let (sessions, given_up) = (watch::channel(Ok(Arc::new(session))).1, watch::channel(0).0);
        Ok(Link { sessions, given_up, clock, timeout, task: None })
    }

    /// Whether a connection that breaks is followed by another.
    pub(super) fn is_kept(&self) -> bool {
        self.task.is_some()
    }

    /// A connection that is ready; waits for one as long as a request may take, unless the server does not let this client
    /// in.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        if let Ok(session) = &*self.sessions.borrow() {
            return Ok(session.clone());
        }
        let mut sessions = self.sessions.clone();
        let until = self.clock.now().plus(self.timeout);
        let known =
            sessions.wait_for(|session| session.as_ref().map_or_else(|down| down.is_denied, |_| true));
        if let Some(Err(_)) = self.clock.until(until, known).await {
            return Err(unreachable("the connection was closed"));
        }
        self.ready()
    }

    /// Whether the server does not let this client in any more.
    pub(super) fn is_denied(&self) -> bool {
        matches!(&*self.sessions.borrow(), Err(down) if down.is_denied)
    }

    /// A connection if there is one now.
    pub(in crate::store) fn ready(&self) -> Result<Arc<Session>> {
        self.sessions.borrow().clone().map_err(|down| down.error)
    }

    /// Ends when the first attempt to connect has, be it well or not.
    pub(in crate::store) async fn tried(&self) {
        let mut sessions = self.sessions.clone();
        // A new channel counts as read; the first attempt is news.
        let _ = sessions.changed().await;
    }

    /// Whether the first attempt to connect is still under way.
    pub(in crate::store) fn is_first_attempt(&self) -> bool {
        self.sessions.borrow().is_err() && !self.sessions.has_changed().unwrap_or(true)
    }

    /// Ends when there is a connection newer than this.
    pub(in crate::store) async fn newer_than(&self, generation: u64) {
        self.until(|session| session.as_ref().is_ok_and(|it| it.generation > generation)).await;
    }

    /// Ends when there is a connection newer than this, or the server does not let this client in.
    pub(super) async fn newer_than_or_denied(&self, generation: u64) {
        let is_known = |session: &Result<Arc<Session>, Down>| match session {
            Ok(session) => session.generation > generation,
            Err(down) => down.is_denied,
        };
        self.until(is_known).await;
    }

    async fn until(&self, is_so: impl FnMut(&Result<Arc<Session>, Down>) -> bool) {
        if self.sessions.clone().wait_for(is_so).await.is_err() {
            std::future::pending().await
        }
    }

    /// Runs a script, with the number of its keys, the keys and the arguments that are written. By its digest, and if the
    /// server has forgotten it, by its text.
    pub(in crate::store) async fn run(
        &self,
        session: &Session,
        script: &Script,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut command = cmd("EVALSHA");
        write(command.arg(&script.digest));
        let answer = self.command(session, &command).await;
        match answer {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.run_by_text(session, script, write).await
            }
            answer => answer.map_err(|error| named(error, script)),
        }
    }

    /// Runs a script by its text. The server executes it even if it has forgotten the script and its answers come too late.
    pub(in crate::store) async fn run_by_text(
        &self,
        session: &Session,
        script: &Script,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut command = cmd("EVAL");
        write(command.arg(&script.source));
        self.command(session, &command).await.map_err(|error| named(error, script))
    }

    /// Sends all of it in one go. Each command has its own answer; an error of the whole is that there is none.
    pub(super) async fn commands(
        &self,
        session: &Session,
        commands: &mut Pipeline,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let answers = commands.ignore_errors().query_async(&mut session.connection.clone()).await;
        self.note(session, &answers);
        answers
    }

    pub(in crate::store) async fn command(
        &self,
        session: &Session,
        command: &redis::Cmd,
    ) -> Result<Value, RedisError> {
        let answer = command.query_async(&mut session.connection.clone()).await;
        self.note(session, &answer);
        answer
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
    pub(in crate::store) fn new(
        address: Address,
        channels: Vec<String>,
        listener: Listener,
        clock: Clock,
        timeout: Duration,
    ) -> Self {
        let what = "the redis store".to_owned();
        let (connect_timeout, is_node) = (timeout, false);
        Maker { address, channels, listener, clock, timeout, connect_timeout, what, is_node }
    }

    /// As one of several nodes: under a name of its own, with its own time to connect, and known by its run_id.
    pub(in crate::store) fn node(self, what: String, connect_timeout: Duration) -> Self {
        Maker { what, connect_timeout, is_node: true, ..self }
    }

    /// For values: it is subscribed to nothing. A server cuts a subscribed connection that it owes 32 MB, and locks must not wait
    /// behind a large answer.
    pub(super) fn for_values(address: Address, clock: Clock, timeout: Duration) -> Self {
        let maker = Maker::new(address, Vec::new(), Arc::new(drop), clock, timeout);
        Maker { what: "the redis store, for values".to_owned(), ..maker }
    }

    /// Why an attempt to connect failed.
    fn down(&self, is_denied: bool, error: Error) -> Down {
        let error = if self.is_node { error } else { self.address.located(error) };
        Down { error, is_denied }
    }

    async fn make(&self, generation: u64) -> Result<(Session, Arc<Listened>), Down> {
        let listened = Arc::new(Listened::default());
        let ear = Ear { listener: self.listener.clone(), state: listened.clone() };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.connect_timeout))
            .set_push_sender(ear);
        let client = self.address.client()?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection =
            connection.map_err(|error| self.down(is_denial(&error), self.address.explained(error)))?;
        let down = |error: RedisError| self.down(is_denial(&error), explained(error));
        let time = asked_time_us(&mut connection).await.map_err(down)?;
        let origin_us = AtomicU64::new(origin_us(time, self.clock.now()));
        let run_id = match self.is_node {
            true => {
                let run_id = asked_run_id(&mut connection).await.map_err(down)?;
                run_id.ok_or_else(|| unreachable("it does not say its run_id"))?
            }
            false => String::new(),
        };
        if !self.channels.is_empty() {
            connection.subscribe(&self.channels[..]).await.map_err(down)?;
        }
        connection.set_response_timeout(self.timeout);
        let (connection, silences) = (Wire::Own(connection), AtomicU64::new(0));
        let session = Session { connection, generation, run_id, origin_us, silences };
        Ok((session, listened))
    }
}

/// Whether the server rejects the user, the password, or a right of that user.
fn is_denial(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm))
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

async fn asked_time_us(connection: &mut impl ConnectionLike) -> Result<u64, RedisError> {
    let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

async fn asked_run_id(connection: &mut impl ConnectionLike) -> Result<Option<String>, RedisError> {
    let info: String = cmd("INFO").arg("server").query_async(connection).await?;
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(run_id.map(|run_id| run_id.trim().to_owned()))
}

/// Of the moments between question and answer, by the latest: then `not_after` errs on the short side, and what is refused
/// for it says what time it is.
fn origin_us(server_us: u64, by: Deadline) -> u64 {
    server_us.saturating_sub(by.as_ns() / 1_000)
}

/// Listens on each connection until it breaks, and makes the next.
async fn keep(
    maker: Maker,
    first: Option<Arc<Listened>>,
    sessions: watch::Sender<Result<Arc<Session>, Down>>,
    mut given_up: watch::Receiver<u64>,
) {
    let what = &maker.what;
    let mut generation = u64::from(first.is_some());
    let mut pause = Duration::ZERO;
    let mut made = maker.clock.now();
    let mut listened = first;
    loop {
        if let Some(listened) = listened.take() {
            tokio::select! {
                () = listened.is_over.notified() => {}
                _ = given_up.wait_for(|given_up| *given_up >= generation) => {}
            }
            listened.is_given_up.store(true, Ordering::Release);
        }
        if generation > 0 {
            tracing::warn!("the connection to {what} is lost; making another");
            let _ = sessions.send_replace(Err(unreachable("the connection to it is lost").into()));
        }
        generation += 1;
        // At once, unless it did not last: a server may let everybody in and throw them out again.
        if maker.clock.now().since(made) > PAUSE_MAX {
            pause = Duration::ZERO;
        }
        let mut is_warned = false;
        listened = loop {
            // Not all at the same moment.
            maker.clock.sleep_until(maker.clock.now().plus(jitter(pause / 2, pause))).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            match maker.make(generation).await {
                Ok((session, listened)) => {
                    let _ = sessions.send_replace(Ok(Arc::new(session)));
                    break Some(listened);
                }
                Err(down) => {
                    let Down { error, is_denied } = &down;
                    match *is_denied && !std::mem::replace(&mut is_warned, true) {
                        true => tracing::warn!(%error, "{what} does not let this client in; trying again"),
                        false => tracing::debug!(%error, "no connection to {what} yet"),
                    }
                    let _ = sessions.send_replace(Err(down));
                }
            }
        };
        made = maker.clock.now();
        if generation > 1 {
            tracing::info!(generation, "connected to {what} again");
        }
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
pub(in crate::store) fn explained(error: RedisError) -> Error {
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
