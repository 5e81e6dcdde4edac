//! `redlock:`, a majority of independent Redis or Valkey servers.
//!
//! Every node is asked at once, by a script that is one step there (`scripts/`, asked by `node` and `round`), and the answer is
//! that of the majority. `take` has the rules of a claim, `keep` those of renewal and repair, `look` what is only looked at;
//! `pulse` knows what to think of a node's clock, and of a node that has forgotten.

mod calls;
mod doctor;
mod keep;
mod ledger;
mod look;
mod node;
mod pulse;
mod round;
mod script;
mod settings;
mod take;

#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{PushInfo, PushKind};
use tokio::task::AbortHandle;

use super::redis::address::{Address, EXPOSED, is_exposed};
use super::redis::ears::notice_channel;
use super::redis::link::{Link, Listener, Maker};
use super::redis::reply::{fence_read, text};
use super::redis::script::Script;
use super::{Capabilities, Notice, NoticeReceiver, Notices, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::{Clock, Deadline};
use crate::connect::Options;
use crate::error::{Error, NodeAnswer, NodeSaid, Result};
use crate::event::Events;
use crate::fence::Fence;
use crate::locks::Locks;
use crate::name::Name;
use crate::password::Password;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::token::{Owner, Token};
use crate::ttl::Ttl;
use calls::Calls;
pub(crate) use doctor::examine;
use ledger::Ledger;
use node::{Form, Node, Request};
use round::Place;
pub use settings::Builder;
use settings::Settings;

/// The least time there is to connect to a node, however little it has for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Before nodes that could not be reached are tried again, where there are too few.
const PAUSE: Duration = Duration::from_millis(20);

/// Why there are no shares.
const NO_SHARES: &str = "two majorities need not have a node in common that knows of every permit, so that there could be too \
                         many; use a single store for these";

/// Why there are no claims over several names.
const NO_SEVERAL: &str = "each name has fences of its own there, and none would do for all; take one after the other, in one order \
                          everywhere";

/// A majority of independent Redis or Valkey servers.
///
/// It belongs to the runtime it is opened in.
pub struct Quorum {
    fleet: Arc<Fleet>,
    /// One for each node.
    tenders: Vec<AbortHandle>,
}

/// What goes on when whoever asked has its answer.
struct Fleet {
    nodes: Vec<Arc<Node>>,
    settings: Settings,
    clock: Clock,
    /// What this client is told on, by every node.
    channel: String,
    ledger: Ledger,
    calls: Arc<Calls>,
    notices: Arc<Notices>,
    /// Where the notices of all clients of this prefix are published, on every node.
    notice_channel: String,
    events: Mutex<Option<Events>>,
    /// The highest fence this client has proposed or heard of: where the next one starts, if that is not far off.
    highest: AtomicU64,
}

impl Quorum {
    /// Connects to the nodes of this URL: `redlock:HOST1,HOST2,HOST3,…`, where each is `HOST`, `HOST:PORT`,
    /// `USER:PASSWORD@HOST:PORT/DB`, or a URL as that of one Redis is. `redlocks:` for TLS.
    ///
    /// | parameter | default | meaning |
    /// |---|---|---|
    /// | `prefix` | `lock:` | what stands before a name in its key |
    /// | `timeout` | `50` | how long a node has for an answer, in ms |
    /// | `retry_delay` | `200` | how long one who waits rests at most before it asks again, in ms |
    /// | `retry_count` | `3` | how often one who waits asks again when too few nodes can vote |
    /// | `drift` | `0.01` | what clocks may drift by in a TTL, as a part of it |
    /// | `quorum` | more than half | how many nodes have to agree |
    /// | `max_ttl` | `60000` | the longest TTL of any client of these nodes, in ms |
    /// | `skew` | `5000` | how far the nodes' clocks may be apart, in ms |
    /// | `quarantine` | `max_ttl` + 2 × `skew` | for how long a node that forgot has no vote, in ms (more than 4 × `skew`); or `off` |
    /// | `ca`, `cert`, `key` | | with TLS: files, as for one Redis |
    ///
    /// # Errors
    /// As [`Builder::open`].
    ///
    /// # Cancel safety
    /// As [`Builder::open`].
    pub async fn open(url: &str) -> Result<Self> {
        Quorum::open_with(url, None).await
    }

    /// The same with a password that does not stand in the URL.
    pub(crate) async fn open_with(url: &str, password: Option<&Password>) -> Result<Self> {
        Quorum::parsed(url, password)?.open().await
    }

    fn parsed(url: &str, password: Option<&Password>) -> Result<Builder> {
        let builder = Builder::parse(url)?;
        Ok(match password {
            Some(password) => builder.password(password.clone()),
            None => builder,
        })
    }

    /// The same from parts: each node as in a URL.
    pub fn builder(nodes: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        Builder::new(nodes)
    }

    /// What somebody should know before it is opened.
    pub(crate) fn warning(url: &str, password: Option<&Password>) -> Option<&'static str> {
        let (nodes, _) = Quorum::parsed(url, password).ok()?.checked().ok()?;
        nodes.iter().any(|(_, address)| is_exposed(&address.info)).then_some(EXPOSED)
    }

    /// A client over it, whose hook is also told of leases that are held by no more nodes than they have to be.
    ///
    /// # Errors
    /// As [`Options::over`].
    pub fn client(self: Arc<Self>, options: Options) -> Result<Locks> {
        let locks = options.over(self.clone())?;
        *lock(&self.fleet.events) = Some(locks.client.events.clone());
        Ok(locks)
    }

    async fn over(nodes: Vec<(String, Address)>, settings: Settings) -> Result<Self> {
        let clock = Clock::system()?;
        // As unguessable as a token: whoever knows it could send us looking, no more.
        let token = Token::fresh(&Owner::this_process())?;
        let channel = format!("{{{}}}:{}", settings.prefix, &token.expose()[..24]);
        let calls: Arc<Calls> = Arc::default();
        let (notices, notice_channel) = (Arc::new(Notices::default()), notice_channel(&settings.prefix));
        let memory = format!("{{{}}}:memory", settings.prefix);
        let nodes: Vec<Arc<Node>> = nodes
            .into_iter()
            .enumerate()
            .map(|(place, (name, address))| {
                let (heard, notices) = (calls.clone(), notices.clone());
                let (channels, prefix) = ([channel.clone(), notice_channel.clone()], settings.prefix.clone());
                let its_channel = notice_channel.clone();
                let listener: Listener = Arc::new(move |push: PushInfo| {
                    match push.data.first().is_some_and(|channel| text(channel) == its_channel) {
                        true => hear_notice(&notices, &prefix, &push),
                        false => hear(&heard, place, &push),
                    }
                });
                let (timeout, connect) = (settings.timeout, settings.timeout.max(CONNECT_TIMEOUT));
                let maker = Maker::new(address, channels.into(), listener, clock.clone(), timeout)
                    .node(format!("the node {name}"), connect);
                Arc::new(Node::new(name, memory.clone(), Link::start(maker), clock.clone(), timeout))
            })
            .collect();
        let patience = clock.now().plus(2 * settings.timeout.max(CONNECT_TIMEOUT));
        let (ledger, events, highest) = (Ledger::default(), Mutex::default(), AtomicU64::new(0));
        let fleet = Arc::new(Fleet {
            nodes,
            settings,
            clock,
            channel,
            ledger,
            calls,
            notices,
            notice_channel,
            events,
            highest,
        });
        fleet.greet_majority(patience).await?;
        fleet.greet_new_nodes().await;
        fleet.nodes.iter().for_each(|node| fleet.warn_once_of_quarantine(node));
        let tenders = fleet
            .nodes
            .iter()
            .map(|node| tokio::spawn(node.clone().tend(fleet.clone())).abort_handle())
            .collect();
        Ok(Quorum { fleet, tenders })
    }
}

/// The middle of the nodes' times: a clock that is far off does not count.
fn median(mut times: Vec<u64>) -> Option<u64> {
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? / 2).copied()
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.tenders.iter().for_each(AbortHandle::abort);
    }
}

impl Fleet {
    fn key(&self, name: &Name) -> String {
        format!("{}{name}", self.settings.prefix)
    }

    fn everybody(&self) -> impl Iterator<Item = (Place, &Arc<Node>)> {
        self.nodes.iter().enumerate()
    }

    fn quorum(&self) -> usize {
        self.settings.quorum
    }

    /// What a node said, unless it said that it agrees: not every yes counts.
    fn unless_young(&self, age: Duration) -> std::result::Result<(), NodeSaid> {
        match self.settings.quarantine.checked_sub(age) {
            Some(remaining) if !remaining.is_zero() => Err(NodeSaid::Quarantined { remaining }),
            _ => Ok(()),
        }
    }

    fn short(&self, what: &'static str, agreed: usize, said: Vec<NodeSaid>) -> Error {
        let nodes = self.nodes.iter().zip(said);
        let nodes = nodes.map(|(node, said)| NodeAnswer { node: node.name.clone(), said }).collect();
        Error::Quorum { what, needed: self.quorum(), agreed, nodes }
    }

    /// What the clocks of most nodes say now, in µs, where at least so many are known: one that is far off does not count.
    fn time_us(&self, known: usize) -> Option<u64> {
        let now = self.clock.now();
        let times: Vec<u64> = self.nodes.iter().filter_map(|node| node.node_us(now)).collect();
        if times.len() >= known { median(times) } else { None }
    }

    /// What is asked now, with the time as a majority of nodes have it, so that a node may go by it.
    fn request(&self, script: &'static LazyLock<Script>, keys: Vec<String>, args: Vec<String>) -> Request {
        let time = self.time_us(self.quorum()).map_or_else(String::new, |time| time.to_string());
        self.request_at(time, script, keys, args)
    }

    /// What may be asked later, too.
    fn request_at_any_time(
        &self,
        script: &'static LazyLock<Script>,
        keys: Vec<String>,
        args: Vec<String>,
    ) -> Request {
        self.request_at(String::new(), script, keys, args)
    }

    fn request_at(
        &self,
        time: String,
        script: &'static LazyLock<Script>,
        keys: Vec<String>,
        args: Vec<String>,
    ) -> Request {
        let Settings { skew, .. } = self.settings;
        let remembered = self.settings.remembered();
        let rules = [time, skew.as_micros().to_string(), remembered.as_micros().to_string()];
        Request { script, keys, args: rules.into_iter().chain(args).collect(), form: Form::Digest }
    }

    fn greeting(&self) -> Request {
        self.request(&script::GREET, Vec::new(), Vec::new())
    }

    /// Greets the nodes as they can be reached, and ends when a quorum has answered. The others join later: their
    /// connections are made in the background, and [`Node::tend`] greets them.
    async fn greet_majority(&self, patience: Deadline) -> Result<()> {
        let unheard = NodeSaid::NotReached { why: "not connected yet".to_owned() };
        let mut said = vec![unheard; self.nodes.len()];
        let mut greetings: FuturesUnordered<_> =
            self.everybody().map(|(place, _)| self.greet(place, self.clock.now(), patience)).collect();
        while let Some((place, answer)) = greetings.next().await {
            let is_reached = answer == NodeSaid::Agreed;
            said[place] = answer;
            self.check_for_twins()?;
            if said.iter().filter(|said| **said == NodeSaid::Agreed).count() >= self.quorum() {
                return Ok(());
            }
            let now = self.clock.now();
            if !is_reached && now < patience {
                greetings.push(self.greet(place, now.plus(PAUSE), patience));
            }
        }
        let reached = said.iter().filter(|said| **said == NodeSaid::Agreed).count();
        Err(self.short("reached", reached, said))
    }

    /// Refuses a quorum in which two nodes that can be reached are one server. One that joins later has no vote of its own:
    /// see [`round`].
    fn check_for_twins(&self) -> Result<()> {
        let mut servers: Vec<(String, &str)> = Vec::new();
        for node in &self.nodes {
            let Ok(session) = node.session() else { continue };
            if let Some((_, other)) = servers.iter().find(|(run_id, _)| *run_id == session.run_id) {
                let why = "they are one server, which has one vote; name each server once";
                return Err(Error::invalid("nodes of a quorum", format!("{other}, {}", node.name), why));
            }
            servers.push((session.run_id.clone(), &node.name));
        }
        Ok(())
    }

    /// Greets every node, and waits for each of them.
    async fn greet_all(&self) {
        let patience = self.clock.now().plus(self.settings.timeout.max(CONNECT_TIMEOUT));
        let greetings = self.everybody().map(|(place, _)| self.greet(place, self.clock.now(), patience));
        futures_util::future::join_all(greetings.collect::<Vec<_>>()).await;
    }

    /// Greets a node at this moment, once it is known whether it can be reached.
    async fn greet(&self, place: Place, at: Deadline, patience: Deadline) -> (Place, NodeSaid) {
        let node = &self.nodes[place];
        self.clock.sleep_until(at).await;
        self.clock.until(patience, node.tried()).await;
        let said = match node.session() {
            Ok(session) => {
                let answer = node.ask(&session, &self.greeting(), self.clock.now()).await;
                answer.err().unwrap_or(NodeSaid::Agreed)
            }
            Err(said) => said,
        };
        (place, said)
    }

    /// Greets those again that are new: a majority of clocks is known now, so that these nodes date their start.
    async fn greet_new_nodes(&self) {
        let is_new = |node: &Node| node.session().is_ok() && node.age().is_zero();
        let new: Vec<_> = self.everybody().filter(|(_, node)| is_new(node)).collect();
        let quorum = self.quorum().min(new.len());
        let (_, asked) = round::ask(new, self.greeting(), self.clock.now());
        round::collect(asked.into_stream(), self.nodes.len(), quorum, &self.clock).await;
    }

    /// A fence above those this client knows of, if that is near the time: else another name's would shut this one out.
    fn next_fence(&self, least: u64) -> u64 {
        let time = self.time_us(1).unwrap_or(1);
        let near = time.saturating_add(u64::try_from(self.settings.skew.as_micros() / 2).unwrap_or(0));
        let above = self.highest.load(Ordering::Relaxed).saturating_add(1);
        let fence = time.max(least).max(if above <= near { above } else { 0 });
        self.highest.fetch_max(fence, Ordering::Relaxed);
        fence
    }

    fn saw(&self, last: u64) {
        self.highest.fetch_max(last, Ordering::Relaxed);
    }

    /// When nothing of a request that is sent now can be left.
    fn gone_by(&self, now: Deadline, ttl: Ttl) -> Deadline {
        now.plus(ttl.as_duration() + self.settings.remembered())
    }

    fn warn_once_of_quarantine(&self, node: &Node) {
        if node.session().is_ok()
            && let Err(said) = self.unless_young(node.age())
            && node.is_first_warning()
        {
            tracing::warn!("the node {}: {said}", node.name);
        }
    }
}

/// A name that somebody waits for is free on a node: `token`, then the highest fence given there, by lines.
fn hear(calls: &Calls, place: Place, push: &PushInfo) {
    let (PushKind::Message, Some(payload)) = (&push.kind, push.data.get(1)) else { return };
    let payload = text(payload);
    let Some((token, last)) = payload.split_once('\n') else { return };
    calls.call(place, token, fence_read(last).map_or(0, |last| last.get()));
}

fn hear_notice(notices: &Notices, prefix: &str, push: &PushInfo) {
    let (PushKind::Message, Some(payload)) = (&push.kind, push.data.get(1)) else { return };
    Notice::parse(&text(payload), prefix).into_iter().for_each(|notice| notices.send(notice));
}

/// The one name of a claim that can be decided here.
fn only(ticket: &Ticket) -> Result<&Name> {
    let unsupported = |what, why| Err(Error::Unsupported { store: "redlock", what, why });
    match (ticket.share, ticket.names.only()) {
        (Share::Exclusive, Some(name)) => Ok(name),
        (Share::Exclusive, None) => unsupported("several names at once", NO_SEVERAL),
        (Share::Shared, _) => unsupported("shared locks", NO_SHARES),
        (Share::Permits(_), _) => unsupported("permits", NO_SHARES),
    }
}

#[async_trait]
impl Store for Quorum {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        self.fleet.acquire(claim).await
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        self.fleet.renew(due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        self.fleet.release(ticket).await
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        self.fleet.detach(ticket, ttl).await
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        only(&Ticket { share: to, ..ticket.clone() })?;
        let why = "it has exclusive locks only";
        Err(Error::Unsupported { store: "redlock", what: "conversions", why })
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        Ok(self.fleet.look(std::slice::from_ref(name)).await?.pop().flatten())
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.fleet.list(prefix, limit).await
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.fleet.evict(name, None).await
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        self.fleet.evict(name, Some(fence)).await
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        Some(self.fleet.notices.subscribe())
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        self.fleet.tell_ended(names, fence).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        self.fleet.adopt(name, ttl).await
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        None
    }

    /// No late window: whatever is under way when it is withdrawn is barred on each node by its fence, and a node that cannot be
    /// reached is told when it can.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fenced: true,
            pushed: true,
            fences_per_name: true,
            max_ttl: self.fleet.settings.max_ttl,
            no_shares: Some(NO_SHARES),
            ..Capabilities::none("redlock")
        }
    }

    fn clock(&self) -> &Clock {
        &self.fleet.clock
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quorum")
            .field("nodes", &self.fleet.nodes)
            .field("settings", &self.fleet.settings)
            .finish_non_exhaustive()
    }
}
