//! `redis:`, one Redis or Valkey server.
//!
//! The server decides, in scripts of which each is one step (`script`, `scripts/`). A release hands over to the next waiter
//! that is there, and tells it on its client's one channel; behind each such push stands a poll. The connection is in
//! `link`, what the scripts answer in `reply`. For servers that forbid scripts there is `bare`; `choose` finds out.

pub(super) mod address;
mod bare;
mod cells;
mod choose;
pub(super) mod doctor;
pub(super) mod ears;
mod evict;
mod keys;
mod left;
pub(super) mod link;
mod manners;
pub(super) mod reply;
pub(super) mod script;
mod settings;
pub(super) mod tls;
mod together;
mod wire;

#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::Value;
use redis::{Cmd, PushInfo, RedisError, cmd};

use super::{Capabilities, NoticeReceiver, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Grant, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::password::Password;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::token::{Owner, Token};
use crate::ttl::Ttl;
use address::Address;
pub use bare::Bare;
use bare::wires::Wires;
use cells::Cells;
pub use choose::open;
pub(crate) use choose::open_with;
pub(crate) use doctor::examine;
use ears::{Ears, Pushed};
use keys::Keys;
use left::{Left, Present};
use link::{Link, Maker, Session, explained, is_passing};
use manners::Manners;
use reply::{Reply, fence_text, share_text, text};
use script::Script;
use settings::{Settings, settings};
use together::{Request, Terms, Together};

/// What a clock may be off by between two looks at it.
const SLACK: Duration = Duration::from_millis(50);

/// Before what failed for a passing reason is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two looks of one whom nobody tells anything: less often, the longer it waits.
const POLL_MIN: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(100);

/// How often a request that does not wait may come too late.
const LATES_MAX: u32 = 3;

/// The most renewals that go out as one.
const BATCH_MAX: usize = 256;

/// How many keys are asked for at a time.
const SCANNED: usize = 500;

/// A Redis or Valkey server.
///
/// It belongs to the runtime it is opened in.
pub struct Redis {
    link: Arc<Link>,
    together: Together,
    keys: Arc<Keys>,
    cells: Cells,
    ears: Ears,
    clock: Clock,
    settings: Settings,
    manners: Manners,
    /// The highest fence any answer had in it: what this client asks for next is above it, also if the server forgets.
    seen: AtomicU64,
}

impl Redis {
    /// Connects to the server at this URL: `redis://HOST:PORT/DB`, `rediss://…` (TLS), `redis+unix:///PATH`, `valkey://…`,
    /// `valkeys://…`.
    ///
    /// | parameter | default | meaning |
    /// |---|---|---|
    /// | `prefix` | `lock:` | what stands before every key: a namespace of locks, fences, values, limits and caches |
    /// | `timeout` | `1000` | how long a request may take, in ms |
    /// | `yield_every` | never | after how many releases of a name other libraries get their chance |
    /// | `ca` | what this machine trusts | with TLS: a file of the authorities that may have signed the server's certificate |
    /// | `cert`, `key` | none | with TLS: files of the certificate and the key that this client shows |
    ///
    /// This store is one of scripts; [`open`] is for servers that may forbid them.
    ///
    /// # Errors
    /// [`Error::Unreachable`] where the server does not answer; [`Error::Untrusted`] where it does not prove, by TLS, who it
    /// is; [`Error::Refused`] where it does not let us in;
    /// [`Error::Invalid`] for a URL that makes no sense.
    ///
    /// # Cancel safety
    /// Dropped before its end, there is no connection, and nothing stays behind.
    pub async fn open(url: &str) -> Result<Self> {
        Redis::open_with(url, None).await
    }

    /// The same with a password that does not stand in the URL.
    pub(crate) async fn open_with(url: &str, password: Option<&Password>) -> Result<Self> {
        let (url, settings) = settings(url)?;
        settings.scripts.allow_for(true)?;
        let address = Address::new(&url, password, &settings.files)?;
        let clock = Clock::system()?;
        let (left, unwanted) = Left::new();
        let ears = Ears::new(left, &settings.prefix);
        // As unguessable as a token: whoever knows it could send us looking, no more.
        let token = Token::fresh(&Owner::this_process())?;
        let channel = format!("{{{}}}:{}", settings.prefix, &token.expose()[..24]);
        let heard = ears.clone();
        let listener = Arc::new(move |push: PushInfo| heard.hear(&push));
        let channels = vec![channel.clone(), ears.channel.clone()];
        let maker = Maker::new(address.clone(), channels, listener, clock.clone(), settings.timeout);
        let link = Arc::new(Link::open(maker).await?);
        if let Some(warning) = doctor::eviction(&link).await {
            tracing::warn!("{warning}");
        }
        let wires = Wires::new(address, clock.clone(), settings.timeout);
        let redis = Redis::over(link, ears, clock, settings, channel, Some(wires));
        left::give_back(&redis.link, redis.keys.clone(), unwanted);
        Ok(redis)
    }

    fn over(
        link: Arc<Link>,
        ears: Ears,
        clock: Clock,
        settings: Settings,
        channel: String,
        wires: Option<Wires>,
    ) -> Self {
        let keys = Arc::new(Keys::new(&settings.prefix));
        let cells = Cells::new(&link, &keys, &clock, &ears.watchers, &channel, wires);
        let together = Together::new(link.clone(), keys.clone(), clock.clone(), channel);
        let manners = Manners::new(settings.yield_every);
        Redis { link, together, keys, cells, ears, clock, settings, manners, seen: AtomicU64::new(0) }
    }

    /// What somebody should know before it is opened.
    pub(crate) fn warning(url: &str, password: Option<&Password>) -> Option<&'static str> {
        let (url, settings) = settings(url).ok()?;
        let address = Address::new(&url, password, &settings.files).ok()?;
        address::is_exposed(&address.info).then_some(address::EXPOSED)
    }

    async fn ask(&self, script: &Script, names: &Names, args: &[&str]) -> Result<Reply> {
        let session = self.link.session().await?;
        let write = |to: &mut Cmd| {
            self.keys.write_all(names, to);
            to.arg(args);
        };
        Reply::new(self.link.run(&session, script, write).await.map_err(explained)?)
    }

    fn saw(&self, fence: Fence) {
        self.seen.fetch_max(fence.get(), Ordering::Relaxed);
    }

    /// Above every fence that was seen.
    fn lowest(&self) -> u64 {
        self.seen.load(Ordering::Relaxed) + 1
    }

    /// One attempt of an acquire.
    async fn try_acquire(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        waits: bool,
        is_first: bool,
    ) -> Result<Reply, RedisError> {
        let Claim { ticket, ttl, .. } = claim;
        let not_after = session.server_us(self.clock.now().plus(self.settings.timeout + SLACK));
        let show = self.shows_within(*ttl);
        let (fences, share) = (claim.fences.max(1), ticket.share);
        let is_plain = is_first && fences == 1 && !claim.detached && ticket.names.only().is_some();
        let text = format!(
            "{}\n{}\n{fences}\n{}\n{}\n{}",
            match share {
                Share::Exclusive if is_plain => "plain",
                _ if is_plain => "share",
                _ => "other",
            },
            u8::from(waits),
            share_text(share),
            show.as_millis(),
            u8::from(claim.detached),
        );
        let terms = Terms { ttl_ms: ttl.as_ms(), not_after, lowest: self.lowest(), is_plain, text };
        let answer = self.together.ask(session, &ticket.names, &ticket.token, Request::Take(terms)).await?;
        // The code is none of the server's, so that the outcome counts as unknown.
        Reply::new(answer).map_err(|error| {
            RedisError::from((redis::ErrorKind::UnexpectedReturnType, "acquire", error.to_string()))
        })
    }

    /// Longer than the time between two looks, with room for one that is not answered.
    fn shows_within(&self, ttl: Ttl) -> Duration {
        ttl.as_duration().max(ttl.third() + 2 * self.settings.timeout)
    }

    /// Whether grants are pushed to it: only a connection of our own is listened on.
    fn is_told(&self) -> bool {
        self.link.is_kept()
    }

    /// Whether one in line may still hope for an answer: a connection that is not ours may be gone for good.
    fn comes_back(&self, queued: Queued, ttl: Ttl) -> bool {
        self.link.is_kept() || self.clock.now() < queued.sent.plus(self.shows_within(ttl))
    }

    /// Until it is taken, or busy is the answer.
    async fn take_or_wait(&self, claim: &Claim, queued: &mut Option<Queued>) -> Result<Acquired> {
        let Claim { ticket, ttl, wait, .. } = claim;
        let bell = self.ears.bells.hang(&ticket.token);
        let (mut lates, mut poll, mut has_asked) = (0, POLL_MIN, false);
        loop {
            let waits = !wait.is_over(self.clock.now());
            let session = match self.link.session().await {
                Ok(session) => session,
                // Once it has been in line it can come back to that.
                Err(_) if waits && queued.is_some() && !self.link.is_denied() => continue,
                Err(error) => return Err(error),
            };
            let sent = self.clock.now();
            let mut look_again = sent.plus(ttl.third());
            // Whoever has asked before may have a place that is kept for it.
            let is_first = !std::mem::replace(&mut has_asked, true);
            match self.try_acquire(&session, claim, waits, is_first).await {
                Ok(reply) if reply.plain().is_some() => {
                    return Ok(Acquired::Granted(self.granted(&reply, *ttl, sent)?));
                }
                Ok(reply) => match reply.word().as_str() {
                    "granted" => return Ok(Acquired::Granted(self.granted(&reply, *ttl, sent)?)),
                    "busy" => return Ok(Acquired::Busy(reply.busy())),
                    // The script removed some dead waiters, and there are more of them than it removes at once.
                    "again" => continue,
                    "queued" => {
                        let last = reply.fence(1).map_or(u64::MAX, Fence::get);
                        *queued = Some(Queued { sent, last });
                        if let Some(look) = reply.look() {
                            look_again = look_again.min(self.clock.now().plus(look));
                        }
                        if !self.is_told() {
                            look_again = look_again.min(self.clock.now().plus(poll));
                            poll = (poll * 2).min(POLL_MAX);
                        }
                    }
                    // It was under way for longer than anybody waits, or a clock was set.
                    "late" => {
                        let now = self.clock.now();
                        session.heard_us(u64::try_from(reply.integer(1)).unwrap_or(0), now);
                        lates += 1;
                        if !waits && lates == LATES_MAX {
                            return Err(reply::too_late(self.settings.timeout));
                        }
                        look_again = now.plus(PAUSE);
                    }
                    _ => return Err(reply.unexpected()),
                },
                Err(error)
                    if waits
                        && (is_passing(&error)
                            || queued.is_some_and(|queued| self.comes_back(queued, *ttl))
                                && explained(error.clone()).is_outcome_unknown()) =>
                {
                    look_again = self.clock.now().plus(PAUSE);
                }
                Err(error) => return Err(explained(error)),
            }
            tokio::select! {
                biased;
                pushed = bell.rung() => {
                    if let Some(grant) = pushed.and_then(|pushed| self.pushed(pushed, *queued, *ttl)) {
                        return Ok(Acquired::Granted(grant));
                    }
                }
                () = self.link.newer_than_or_denied(session.generation) => {}
                () = self.clock.sleep_until(wait.cap(look_again)) => {}
            }
        }
    }

    fn granted(&self, reply: &Reply, ttl: Ttl, sent: Deadline) -> Result<Grant> {
        let (fence, fences) = match reply.plain() {
            Some(fence) => (fence?, 1),
            None => (reply.fence(1)?, reply.fences(2)),
        };
        self.saw(fence.plus(u64::from(fences) - 1)?);
        Ok(Grant { fence, fences, valid_until: sent.plus(ttl.validity()) })
    }

    /// A grant that came unasked counts from the last request that found us waiting, and only if it was made after that.
    fn pushed(&self, pushed: Pushed, queued: Option<Queued>, ttl: Ttl) -> Option<Grant> {
        let Queued { sent, last } = queued?;
        let Pushed { fence, fences } = pushed;
        let valid_until = sent.plus(ttl.validity());
        self.saw(fence.plus(u64::from(fences) - 1).ok()?);
        (fence.get() > last && valid_until > self.clock.now()).then_some(Grant { fence, fences, valid_until })
    }

    /// One batch: those with one name, which are most, go out as one.
    async fn renew_batch(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let sent = self.clock.now();
        let session = match self.link.session().await {
            Ok(session) => session,
            Err(error) => return due.iter().map(|_| Err(error.clone())).collect(),
        };
        let ones = || due.iter().filter_map(|(ticket, ttl)| Some((ticket.names.only()?, ticket, ttl)));
        let write = |to: &mut Cmd| {
            self.keys.write_count(ones().count(), to);
            ones().for_each(|(name, ..)| self.keys.write(name, to));
            for (_, ticket, ttl) in ones() {
                to.arg(ticket.token.expose()).arg(fence_text(ticket.fence)).arg(ttl.as_ms());
            }
        };
        let answer = match ones().next() {
            Some(_) => self.link.run(&session, &script::RENEW_MANY, write).await.map_err(explained),
            None => Ok(Value::Array(Vec::new())),
        };
        let mut answers: Box<dyn Iterator<Item = Result<Value>> + Send> = match answer {
            Ok(Value::Array(answers)) => Box::new(answers.into_iter().map(Ok)),
            Ok(_) => Box::new(std::iter::empty()),
            // What the server refuses it may refuse for one of them only.
            Err(error) if !error.is_outcome_unknown() => {
                Box::new(std::iter::repeat_with(|| Ok(Value::Int(0))))
            }
            Err(error) => Box::new(std::iter::repeat_with(move || Err(error.clone()))),
        };
        let renewed = due.iter().map(|(ticket, ttl)| {
            let answer = match ticket.names.only() {
                Some(_) => answers.next().unwrap_or_else(|| Err(reply::odd())),
                None => Ok(Value::Int(0)),
            };
            async move {
                match answer? {
                    Value::Int(0) => self.renew_alone(ticket, *ttl).await,
                    answer => renewal(&Reply::new(answer)?, *ttl, sent),
                }
            }
        });
        join_all(renewed.collect::<Vec<_>>()).await
    }

    async fn renew_alone(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let args = [ticket.token.expose(), &fence_text(ticket.fence), &ttl.as_ms().to_string()];
        self.renewed(&script::RENEW, ticket, &args, ttl).await
    }

    async fn renewed(&self, script: &Script, ticket: &Ticket, args: &[&str], ttl: Ttl) -> Result<Renewed> {
        let sent = self.clock.now();
        renewal(&self.ask(script, &ticket.names, args).await?, ttl, sent)
    }

    /// The names of the keys that match, whether held or only waited for.
    async fn names(&self, prefix: &str) -> Result<Vec<Name>> {
        let session = self.link.session().await?;
        let own = &self.keys.prefix;
        let mut names = Vec::new();
        for pattern in patterns(own, prefix) {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED);
                let reply = Reply::new(self.link.command(&session, &scan).await.map_err(explained)?)?;
                names.extend(reply.list(1).iter().filter_map(|key| name_in(own, &text(key))));
                cursor = reply.text(0);
                if cursor == "0" {
                    break;
                }
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

fn renewal(reply: &Reply, ttl: Ttl, sent: Deadline) -> Result<Renewed> {
    match reply.word().as_str() {
        _ if reply.is_yes() => Ok(Renewed::Until(sent.plus(ttl.validity()))),
        "until" => Ok(Renewed::Until(sent.plus(ttl.validity()))),
        "lost" => Ok(Renewed::Lost(reply.loss())),
        _ => Err(reply.unexpected()),
    }
}

/// The last request that found us waiting.
#[derive(Debug, Clone, Copy)]
struct Queued {
    sent: Deadline,
    /// The highest fence or arrival at that moment.
    last: u64,
}

/// Which keys are of names that start so, by who holds and by who waits; the second for those that only somebody waits for.
pub(super) fn patterns(own: &str, prefix: &str) -> [String; 2] {
    let start = escaped(&format!("{own}{prefix}"));
    [format!("{start}*"), format!("{{{start}*}}:line")]
}

/// The name that such a key is of.
pub(super) fn name_in(own: &str, key: &str) -> Option<Name> {
    let key = key.strip_prefix('{').and_then(|key| key.strip_suffix("}:line")).unwrap_or(key);
    key.strip_prefix(own).and_then(|name| Name::new(name).ok())
}

/// For a pattern: as it is written.
fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| matches!(c, '*' | '?' | '[' | ']' | '\\').then_some('\\').into_iter().chain([c]))
        .collect()
}

#[async_trait]
impl Store for Redis {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let mut queued = None;
        let present = Present::new(self, claim);
        let answer = self.take_or_wait(claim, &mut queued).await;
        if matches!(answer, Ok(Acquired::Granted(_))) {
            present.granted();
        }
        let (store, why) = match answer {
            Err(Error::Refused { store, why }) => (store, why),
            Err(Error::Untrusted { store, why }) if queued.is_some() => {
                return Err(Error::Unreachable { store, why });
            }
            answer => return answer,
        };
        // It may have been refused in the middle of a script, or with a place in line from before.
        match self.release(&claim.ticket).await {
            // That place is still to be given up.
            Err(_) if queued.is_some() => Err(Error::Unreachable { store, why }),
            _ => Err(Error::Refused { store, why }),
        }
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let batches = join_all(due.chunks(BATCH_MAX).map(|batch| self.renew_batch(batch))).await;
        batches.into_iter().flatten().collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        let mut released = Released::NotHeld;
        let moment = self.manners.moment(&ticket.names);
        let share = reply::share_held(ticket);
        loop {
            let session = self.link.session().await?;
            let request = Request::Release { moment, share: share.clone() };
            let answer = self.together.ask(&session, &ticket.names, &ticket.token, request).await;
            let reply = Reply::new(answer.map_err(explained)?)?;
            match reply.word().as_str() {
                _ if reply.is_yes() => return Ok(Released::Released),
                "released" => released = Released::Released,
                "nothing" => {}
                _ => return Err(reply.unexpected()),
            }
            // There were more to admit than one script should.
            if reply.integer(1) == 0 {
                return Ok(released);
            }
        }
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let fence = fence_text(ticket.fence);
        let args = [ticket.token.expose(), &fence, &ttl.as_ms().to_string()];
        self.renewed(&script::DETACH, ticket, &args, ttl).await
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        let fence = fence_text(ticket.fence);
        let args = [ticket.token.expose(), &fence, &share_text(to), &self.lowest().to_string()];
        let sent = self.clock.now();
        let reply = self.ask(&script::CONVERT, &ticket.names, &args).await?;
        match reply.word().as_str() {
            "converted" => {
                let (fence, fences) = (reply.fence(1)?, reply.fences(2));
                self.saw(fence.plus(u64::from(fences) - 1)?);
                let left = Duration::from_millis(u64::try_from(reply.integer(3)).unwrap_or(0));
                let valid_until = sent.plus(Ttl::validity_of(left));
                Ok(Converted::Converted(Grant { fence, fences, valid_until }))
            }
            "refused" => Ok(Converted::Refused),
            "nothing" => Ok(Converted::NotHeld),
            _ => Err(reply.unexpected()),
        }
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        let reply = self.ask(&script::INSPECT, &name.clone().into(), &[]).await?;
        let (mut holders, mut waiters) = (reply::holders(reply.list(1)), reply::waiters(reply.list(2)));
        let now_us = u64::try_from(reply.integer(3)).unwrap_or(0);
        reply::date(&mut holders, &mut waiters, now_us, reply.list(4).iter().map(reply::number));
        let is_used = !holders.is_empty() || !waiters.is_empty();
        Ok(is_used.then(|| Status { name: name.clone(), holders, waiters }))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        let mut found = Vec::new();
        for name in self.names(prefix).await? {
            if found.len() == limit {
                break;
            }
            found.extend(self.inspect(&name).await?);
        }
        Ok(found)
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.take_away(name, None).await
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        self.take_away(name, Some(fence)).await
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        self.is_told().then(|| self.ears.notices.subscribe())
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        self.tell_ended(names, fence).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        self.ask(&script::ADOPT, &name.clone().into(), &[&ttl.as_ms().to_string()]).await?.adopted()
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        Some(&self.cells)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pushed: self.is_told(),
            late_window: self.settings.timeout + 2 * SLACK,
            ..Capabilities::all("redis")
        }
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("settings", &self.settings).finish_non_exhaustive()
    }
}
