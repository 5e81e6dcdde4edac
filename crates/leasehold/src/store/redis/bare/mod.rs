//! `redis:` on a server that forbids scripts.
//!
//! Each decision is a deal (`deal`): the keys it depends on are watched, looked at, and changed in one transaction that does
//! not happen if anybody was faster. What a server compares and deletes by itself (`native`) is given back that way. There is
//! no line and no hand-over: whoever waits looks again. What stands in the keys is what the scripts write there (`mark`), so
//! that clients with and without them exclude each other.

pub(super) mod deal;
mod mark;
mod native;
mod rules;
mod slots;
mod view;
pub(super) mod wires;

#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::Pipeline;

use super::address::Address;
use super::choose::forbidden;
use super::{BATCH_MAX, PAUSE, Settings, settings};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Released, Renewed, Share, Status, Ticket, Wait,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::jitter::jitter;
use crate::name::Name;
use crate::password::Password;
use crate::store::{Capabilities, Store};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::ttl::Ttl;
use native::{Native, is_known};
use rules::Taken;
use slots::{Slot, Slots};
use wires::Wires;

/// Between two looks of one who waits.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// Before what somebody else was faster at is tried again.
const AGAIN_MIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(16);

/// How often a batch of renewals is tried as one.
const TOGETHER_MAX: u32 = 3;

/// A Redis or Valkey server, without scripts.
///
/// One holder at a time, with a fence, an expiry and all that follows from these. What needs scripts it does not offer:
/// order of arrival, a release that wakes the next, readers, permits, several names at once.
pub struct Bare {
    wires: Wires,
    clock: Clock,
    settings: Settings,
    /// The key of the highest fence.
    last: String,
    native: Mutex<Option<Native>>,
    /// The highest fence any answer had in it.
    seen: AtomicU64,
    /// Whose turn it is, of those who change the highest fence: else the tasks of one client would be in each other's way.
    turn: Slots,
}

impl Bare {
    /// Connects to the server at this URL, as [`Redis::open`](super::Redis::open) does.
    ///
    /// # Errors
    /// As [`Redis::open`](super::Redis::open).
    ///
    /// # Cancel safety
    /// Dropped before its end, there is no connection, and nothing stays behind.
    pub async fn open(url: &str) -> Result<Self> {
        Bare::open_with(url, None).await
    }

    /// The same with a password that does not stand in the URL.
    pub(super) async fn open_with(url: &str, password: Option<&Password>) -> Result<Self> {
        let (url, settings) = settings(url)?;
        settings.scripts.allow_for(false)?;
        let address = Address::new(&url, password, &settings.files)?;
        let clock = Clock::system()?;
        let wires = Wires::open(address, clock.clone(), settings.timeout).await?;
        let last = format!("{{{}}}:fence", settings.prefix);
        let turn = Slots::new(1, clock.clone(), settings.timeout);
        let (native, seen) = (Mutex::default(), AtomicU64::new(0));
        let store = Bare { wires, clock, settings, last, native, seen, turn };
        *lock(&store.native) = store.probed().await?;
        Ok(store)
    }

    /// What the server can do by itself, tried on a key that nobody has.
    async fn probed(&self) -> Result<Option<Native>> {
        let key = format!("{{{}}}:probe", self.settings.prefix);
        let mut call = self.wires.call().await?;
        let mut commands = Pipeline::new();
        for native in Native::ALL {
            commands.add_command(native.delete(&key, "nobody"));
        }
        let answers = call.ask(&mut commands).await.map_err(super::link::explained)?;
        call.done();
        Ok(Native::ALL
            .into_iter()
            .zip(&answers)
            .find(|(_, answer)| is_known(answer))
            .map(|(native, _)| native))
    }

    /// Why scripts do not run, if that is so.
    pub(super) async fn scripts_are_forbidden(&self) -> Option<String> {
        let mut call = self.wires.call().await.ok()?;
        let mut commands = Pipeline::new();
        commands.cmd("EVALSHA").arg("0".repeat(40)).arg(0).cmd("EVAL").arg("return 1").arg(0);
        let answers = call.ask(&mut commands).await.ok()?;
        call.done();
        answers.iter().find_map(|answer| forbidden(answer.as_ref().err()?))
    }

    fn native(&self) -> Option<Native> {
        *lock(&self.native)
    }

    /// It is another server now, or has other rules.
    fn without_native(&self) {
        *lock(&self.native) = None;
    }

    fn key(&self, name: &Name) -> String {
        format!("{}{name}", self.settings.prefix)
    }

    fn saw(&self, fence: u64) {
        self.seen.fetch_max(fence, Ordering::Relaxed);
    }

    /// Above every fence that was seen.
    fn lowest(&self) -> u64 {
        self.seen.load(Ordering::Relaxed) + 1
    }

    /// Waits for it as long as a request may take.
    async fn turn(&self) -> Result<Slot<'_>> {
        let why = "no answer in time to what was asked before";
        self.turn.take().await.ok_or_else(|| Error::Unreachable { store: "redis", why: why.to_owned() })
    }

    fn again(&self) -> Again<'_> {
        Again {
            clock: &self.clock,
            until: self.clock.now().plus(self.settings.timeout),
            pause: Duration::ZERO,
        }
    }

    /// Until it is taken, or busy is the answer. `is_unsure` says whether one of the attempts may have been executed without
    /// our knowing.
    async fn take_or_wait(&self, claim: &Claim, name: &Name, is_unsure: &mut bool) -> Result<Acquired> {
        let (mut again, mut look, mut has_looked) = (self.again(), LOOK_MIN, false);
        loop {
            let waits = !claim.wait.is_over(self.clock.now());
            let mut pause = match self.take(claim, name).await {
                Ok(Taken::Granted(grant)) => return Ok(Acquired::Granted(grant)),
                Ok(Taken::Busy(busy)) if !waits => return Ok(Acquired::Busy(busy)),
                Ok(Taken::Busy(busy)) => {
                    (again, has_looked) = (self.again(), true);
                    let pause = jitter(look / 2, look);
                    look = (look * 2).min(LOOK_MAX).min(claim.ttl.third().max(AGAIN_MIN));
                    // One that ends before is looked at when it does.
                    busy.remaining.map_or(pause, |remaining| pause.min(remaining + AGAIN_MIN))
                }
                Ok(Taken::Again) => again.next(waits)?,
                Err(trouble) => {
                    let is_unknown = trouble.error.is_outcome_unknown();
                    *is_unsure |= is_unknown;
                    if !waits || !(trouble.is_passing || has_looked && is_unknown) {
                        return Err(trouble.error);
                    }
                    PAUSE
                }
            };
            if let Wait::Until(deadline) = claim.wait {
                pause = pause.min(deadline.since(self.clock.now()));
            }
            self.clock.sleep_until(self.clock.now().plus(pause)).await;
        }
    }

    /// One batch: as one deal if nobody is in the way, else one by one.
    async fn renew_batch(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let (mut whole, mut at) = (Vec::new(), Vec::new());
        let mut answers: Vec<Result<Renewed>> = Vec::new();
        for (ticket, ttl) in due {
            match only(ticket) {
                Ok(name) => {
                    at.push(answers.len());
                    whole.push((ticket, name, *ttl));
                    answers.push(Err(crowded()));
                }
                Err(error) => answers.push(Err(error)),
            }
        }
        let renewed = match self.renew_whole(&whole).await {
            Some(renewed) => renewed,
            None => {
                let one_by_one = whole.iter().map(|one| async move {
                    let mut again = self.again();
                    loop {
                        match self.renew_together(&[*one]).await.map_err(Error::from)? {
                            Some(mut answers) => return answers.pop().unwrap_or_else(|| Err(crowded())),
                            None => again.rest().await?,
                        }
                    }
                });
                join_all(one_by_one).await
            }
        };
        at.into_iter().zip(renewed).for_each(|(at, answer)| answers[at] = answer);
        answers
    }

    async fn renew_whole(&self, due: &[(&Ticket, &Name, Ttl)]) -> Option<Vec<Result<Renewed>>> {
        for _ in 0..TOGETHER_MAX {
            match self.renew_together(due).await {
                Ok(Some(answers)) => return Some(answers),
                Ok(None) => {}
                Err(trouble) => return Some(due.iter().map(|_| Err(trouble.error.clone())).collect()),
            }
        }
        None
    }
}

/// What somebody else was faster at, tried again after a moment, for as long as a request may take.
struct Again<'a> {
    clock: &'a Clock,
    until: Deadline,
    pause: Duration,
}

impl Again<'_> {
    /// For how long to rest; without an end for one who waits anyway.
    fn next(&mut self, waits: bool) -> Result<Duration> {
        if !waits && self.clock.now() > self.until {
            return Err(crowded());
        }
        // At once the first time: whoever was faster has done what it came for.
        let pause = jitter(self.pause / 2, self.pause);
        self.pause = (self.pause * 2).clamp(AGAIN_MIN, AGAIN_MAX);
        Ok(pause)
    }

    async fn rest(&mut self) -> Result<()> {
        let pause = self.next(false)?;
        self.clock.sleep_until(self.clock.now().plus(pause)).await;
        Ok(())
    }
}

fn crowded() -> Error {
    let why = "others take locks there all the time, so that none could be taken without a script in between; try again, or \
               allow EVAL and EVALSHA";
    Error::Refused { store: "redis", why: why.to_owned() }
}

fn unsupported(what: &'static str) -> Error {
    Error::Unsupported { store: "redis", what, why: "this server runs no scripts, or is not to run any" }
}

/// The one name of a claim that can be decided here.
fn only(ticket: &Ticket) -> Result<&Name> {
    match (ticket.share, ticket.names.only()) {
        (Share::Exclusive, Some(name)) => Ok(name),
        (Share::Exclusive, None) => Err(unsupported("several names at once")),
        (Share::Shared, _) => Err(unsupported("shared locks")),
        (Share::Permits(_), _) => Err(unsupported("permits")),
    }
}

impl Bare {
    async fn evict_some(&self, name: &Name, only: Option<Fence>) -> Result<Evicted> {
        let mut again = self.again();
        loop {
            if let Some(evicted) = self.take_away(name, only).await? {
                return Ok(evicted);
            }
            again.rest().await?;
        }
    }
}

#[async_trait]
impl Store for Bare {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let name = only(&claim.ticket)?;
        let mut is_unsure = false;
        let answer = self.take_or_wait(claim, name, &mut is_unsure).await;
        if !is_unsure || !matches!(answer, Ok(Acquired::Busy(_)) | Err(Error::Refused { .. })) {
            return answer;
        }
        // Nothing is to be left of it, also not of an attempt that is under way.
        match self.release(&claim.ticket).await {
            Ok(_) => answer,
            Err(error) => Err(Error::Unreachable { store: "redis", why: error.to_string() }),
        }
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let batches = join_all(due.chunks(BATCH_MAX).map(|batch| self.renew_batch(batch))).await;
        batches.into_iter().flatten().collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        let key = self.key(only(ticket)?);
        if self.release_natively(ticket, &key).await? {
            return Ok(Released::Released);
        }
        let mut again = self.again();
        loop {
            if let Some(released) = self.let_go(ticket, &key).await? {
                return Ok(released);
            }
            again.rest().await?;
        }
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let key = self.key(only(ticket)?);
        let sent = self.clock.now();
        if self.detach_natively(ticket, &key, ttl).await? {
            return Ok(Renewed::Until(sent.plus(ttl.validity())));
        }
        let mut again = self.again();
        loop {
            if let Some(renewed) = self.let_live(ticket, &key, ttl).await? {
                return Ok(renewed);
            }
            again.rest().await?;
        }
    }

    async fn convert(&self, _: &Ticket, _: Share) -> Result<Converted> {
        Err(unsupported("conversions"))
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        Ok(self.see(name).await?)
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        let mut found = Vec::new();
        for name in self.names(prefix).await? {
            if found.len() == limit {
                break;
            }
            found.extend(self.see(&name).await?);
        }
        Ok(found)
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.evict_some(name, None).await
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        self.evict_some(name, Some(fence)).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        let mut again = self.again();
        loop {
            if let Some(adopted) = self.give_end(name, ttl).await? {
                return Ok(adopted);
            }
            again.rest().await?;
        }
    }

    /// No late window: what is under way when it is withdrawn does not happen after that, since its keys were touched.
    fn cells(&self) -> Option<&dyn CellStore> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { fenced: true, fence_blocks: true, ..Capabilities::none("redis") }
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

impl std::fmt::Debug for Bare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let native = self.native();
        f.debug_struct("Bare")
            .field("settings", &self.settings)
            .field("native", &native)
            .finish_non_exhaustive()
    }
}
