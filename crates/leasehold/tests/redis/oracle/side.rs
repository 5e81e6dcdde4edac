//! `Side`: the claims of a sequence as one of the two stores has granted them, and the check of what this store says by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::{
    Acquired, Busy, Claim, Converted, Deadline, Evicted, Fence, Grant, Loss, Name, Names, Owner, Released,
    Renewed, Result, Share, Status, Store, Ticket, Token, Ttl, Wait,
};

use super::BRIEF;
use super::answer::{Answer, View};
use super::operation::{Operation, Proof, Shown, Waiting};
use super::plan::{Plan, TTLS_S};

/// How far the clock of a server may run from ours in the time of a sequence. It is far below the differences between TTLs.
const SLACK: Duration = Duration::from_secs(5);

/// What a store has answered.
#[derive(Debug, Clone)]
pub(super) enum Raw {
    Acquired(Result<Acquired>),
    Released(Result<Released>),
    Renewed(Vec<Result<Renewed>>),
    Detached(Result<Renewed>),
    Converted(Result<Converted>),
    Evicted(Result<Evicted>),
    Listed(Result<Vec<Status>>),
    /// A holding that was detached has ended since.
    Ended,
}

/// An answer, and between which moments the store decided.
#[derive(Debug, Clone)]
pub(super) struct Timed<T> {
    pub(super) what: T,
    pub(super) from: Deadline,
    pub(super) by: Deadline,
}

/// One of the two stores.
#[derive(Debug, Clone)]
pub(super) struct Side {
    /// One for each client.
    pub(super) stores: Vec<Arc<dyn Store>>,
    pub(super) names: Vec<Name>,
    prefix: String,
    claims: Vec<Claimed>,
    /// The highest fence given at each name.
    highest: Vec<u64>,
}

/// A claim, and the grant it has or had.
#[derive(Debug, Clone)]
struct Claimed {
    token: Token,
    places: Vec<usize>,
    names: Names,
    client: usize,
    ttl: Ttl,
    fences: u16,
    wants_detached: bool,
    wanted: Share,
    /// After conversions.
    share: Share,
    fence: Option<Fence>,
    block: u16,
    older: Option<Fence>,
    is_detached: bool,
    /// Between which moments the store ends the holding.
    ends_from: Deadline,
    ends_by: Deadline,
}

/// New tokens for a plan, labelled by their numbers.
pub(super) fn tokens(plan: &Plan) -> Vec<Token> {
    let token = |number| Token::fresh(&Owner::new(format!("t{number}")).unwrap()).unwrap();
    (0..plan.requests.len()).map(token).collect()
}

pub(super) fn seconds(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

impl Side {
    pub(super) fn new(plan: &Plan, tokens: &[Token], prefix: &str, stores: Vec<Arc<dyn Store>>) -> Self {
        let names: Vec<Name> =
            (0..plan.names).map(|at| format!("{prefix}{}", super::plan::name(at)).parse().unwrap()).collect();
        let claimed = |(request, token): (&super::plan::Request, &Token)| Claimed {
            token: token.clone(),
            places: request.names.clone(),
            names: Names::new(request.names.iter().map(|at| names[*at].clone())).unwrap(),
            client: request.client,
            ttl: seconds(request.ttl_s),
            fences: request.fences,
            wants_detached: request.is_detached,
            wanted: request.share,
            share: request.share,
            fence: None,
            block: 1,
            older: None,
            is_detached: false,
            ends_from: Deadline::FAR,
            ends_by: Deadline::FAR,
        };
        let claims = plan.requests.iter().zip(tokens).map(claimed).collect();
        let highest = vec![0; plan.names];
        Side { stores, names, prefix: prefix.to_owned(), claims, highest }
    }

    /// All clients of a side have one clock: that of the machine, or the one that the reference is moved by.
    pub(super) fn now(&self) -> Deadline {
        self.stores[0].clock().now()
    }

    pub(super) fn client_of(&self, claim: usize) -> usize {
        self.claims[claim].client
    }

    pub(super) fn places_of(&self, claim: usize) -> &[usize] {
        &self.claims[claim].places
    }

    pub(super) fn is_detached(&self, claim: usize) -> bool {
        self.claims[claim].is_detached
    }

    /// The request of an operation, which holds nothing of this value. It is sent when it is first polled.
    pub(super) fn request(&self, operation: &Operation) -> BoxFuture<'static, Raw> {
        match operation {
            Operation::Acquire { claim, waiting, client } => {
                let store = self.stores[*client].clone();
                let claim = self.claim(*claim, *waiting);
                async move { Raw::Acquired(store.acquire(&claim).await) }.boxed()
            }
            Operation::Release { shown, client } => {
                let (store, ticket) = (self.stores[*client].clone(), self.ticket(shown));
                async move { Raw::Released(store.release(&ticket).await) }.boxed()
            }
            Operation::Renew { shown, ttl_s, client } => {
                let store = self.stores[*client].clone();
                let due: Vec<_> = shown.iter().map(|shown| (self.ticket(shown), seconds(*ttl_s))).collect();
                async move { Raw::Renewed(store.renew(&due).await) }.boxed()
            }
            Operation::Detach { shown, ttl_s, client } => self.detach(shown, seconds(*ttl_s), *client),
            Operation::Convert { shown, to, client } => {
                let (store, ticket, to) = (self.stores[*client].clone(), self.ticket(shown), *to);
                async move { Raw::Converted(store.convert(&ticket, to).await) }.boxed()
            }
            Operation::Evict { name, client } => {
                let (store, name) = (self.stores[*client].clone(), self.names[*name].clone());
                async move { Raw::Evicted(store.evict(&name).await) }.boxed()
            }
            Operation::EvictHolder { name, shown, client } => {
                let (store, name) = (self.stores[*client].clone(), self.names[*name].clone());
                let fence = self.fence(shown).unwrap_or(Fence::new(1).unwrap());
                async move { Raw::Evicted(store.evict_holder(&name, fence).await) }.boxed()
            }
            Operation::Expire { claim, ttl_ms } => {
                let ttl = Ttl::new(Duration::from_millis(*ttl_ms)).unwrap();
                self.detach(&Shown::of(*claim), ttl, self.client_of(*claim))
            }
            Operation::List { client } => {
                let (store, prefix) = (self.stores[*client].clone(), self.prefix.clone());
                async move { Raw::Listed(store.list(&prefix, 10).await) }.boxed()
            }
            Operation::Together(_) => panic!("it is not one request"),
        }
    }

    fn detach(&self, shown: &Shown, ttl: Ttl, client: usize) -> BoxFuture<'static, Raw> {
        let (store, ticket) = (self.stores[client].clone(), self.ticket(shown));
        async move { Raw::Detached(store.detach(&ticket, ttl).await) }.boxed()
    }

    fn claim(&self, number: usize, waiting: Waiting) -> Claim {
        let Claimed { token, names, wanted, ttl, fences, wants_detached, .. } = &self.claims[number];
        let ticket = Ticket { names: names.clone(), token: token.clone(), share: *wanted, fence: None };
        let wait = match waiting {
            Waiting::Never => Wait::Never,
            Waiting::Briefly => Wait::Until(self.now().plus(BRIEF)),
            Waiting::Forever => Wait::Forever,
        };
        Claim { ticket, ttl: *ttl, wait, fences: *fences, detached: *wants_detached }
    }

    fn ticket(&self, shown: &Shown) -> Ticket {
        let Claimed { token, names, share, .. } = &self.claims[shown.claim];
        let names = match shown.elsewhere {
            Some(at) => self.names[at].clone().into(),
            None => names.clone(),
        };
        let share = if shown.is_share_unknown { Share::Exclusive } else { *share };
        Ticket { names, token: token.clone(), share, fence: self.fence(shown) }
    }

    /// A claim that never had a grant shows the lowest fence there is.
    fn fence(&self, shown: &Shown) -> Option<Fence> {
        let Claimed { fence, block, older, .. } = &self.claims[shown.claim];
        let lowest = Fence::new(1).unwrap();
        let first = fence.unwrap_or(lowest);
        let below = Fence::new(first.get() - 1).unwrap_or(lowest);
        let above = |steps: u16| first.plus(u64::from(steps)).unwrap();
        match shown.proof {
            Proof::None => None,
            Proof::First => Some(first),
            Proof::Last => Some(above(block - 1)),
            Proof::Above => Some(above(*block)),
            Proof::Below => Some(below),
            Proof::Older => Some(older.unwrap_or(below)),
        }
    }

    /// Checks an answer by itself, and takes note of it.
    pub(super) fn record(
        &mut self,
        operation: &Operation,
        raw: Timed<Raw>,
    ) -> std::result::Result<Answer, String> {
        let Timed { what, from, by } = raw;
        let failed = |error: leasehold::Error| format!("failed: {error}");
        match (operation, what) {
            (Operation::Acquire { claim, .. }, Raw::Acquired(answer)) => match answer.map_err(failed)? {
                Acquired::Granted(grant) => self.granted(*claim, grant, from, by),
                Acquired::Busy(busy) => self.busy(*claim, &busy),
            },
            (_, Raw::Released(answer)) => Ok(match answer.map_err(failed)? {
                Released::Released => Answer::Released,
                Released::NotHeld => Answer::NotHeld,
            }),
            (Operation::Renew { shown, ttl_s, .. }, Raw::Renewed(answers)) => {
                if answers.len() != shown.len() {
                    return Err(format!("{} answers to {} renewals", answers.len(), shown.len()));
                }
                let renewed = shown.iter().zip(answers).map(|(shown, answer)| {
                    self.renewed(shown, seconds(*ttl_s), answer.map_err(failed)?, from, by)
                });
                Ok(Answer::Renewed(renewed.collect::<std::result::Result<_, String>>()?))
            }
            (Operation::Detach { shown, ttl_s, .. }, Raw::Detached(answer)) => {
                let lost = self.detached(shown, seconds(*ttl_s), answer.map_err(failed)?, from, by)?;
                Ok(Answer::Renewed(vec![lost]))
            }
            (Operation::Expire { .. }, Raw::Ended) => Ok(Answer::Ended),
            (Operation::Expire { claim, .. }, answer) => Err(format!("t{claim} is not detached: {answer:?}")),
            (Operation::Convert { shown, to, .. }, Raw::Converted(answer)) => {
                match answer.map_err(failed)? {
                    Converted::Converted(grant) => self.converted(shown.claim, *to, grant),
                    Converted::Refused => Ok(Answer::Refused),
                    Converted::NotHeld => Ok(Answer::NotHeld),
                }
            }
            (_, Raw::Evicted(answer)) => {
                let mut evicted = Vec::new();
                for holder in answer.map_err(failed)?.holders {
                    let claim = self.claim_of(&holder.owner)?;
                    self.check_fence(claim, holder.fence)?;
                    evicted.push(claim);
                }
                evicted.sort_unstable();
                Ok(Answer::Evicted(evicted))
            }
            (_, Raw::Listed(answer)) => {
                let place = |status: &Status| {
                    let found = self.names.iter().position(|name| *name == status.name);
                    found.ok_or_else(|| format!("{} is listed", status.name))
                };
                let places =
                    answer.map_err(failed)?.iter().map(place).collect::<std::result::Result<_, _>>()?;
                Ok(Answer::Listed(places))
            }
            (operation, answer) => Err(format!("{answer:?} is no answer to `{operation}`")),
        }
    }

    /// Checks that a grant has the fences it was asked for, above all before, and that its deadline is within what was asked.
    fn granted(
        &mut self,
        number: usize,
        grant: Grant,
        from: Deadline,
        by: Deadline,
    ) -> std::result::Result<Answer, String> {
        let claim = &self.claims[number];
        let is_new = claim.fence != Some(grant.fence);
        let ttl = claim.ttl;
        if is_new {
            self.rises(number, grant.fence, grant.fences)?;
        }
        let claim = &mut self.claims[number];
        if is_new {
            claim.older = claim.fence.or(claim.older);
            (claim.fence, claim.block) = (Some(grant.fence), grant.fences);
            (claim.share, claim.is_detached) = (claim.wanted, claim.wants_detached);
            (claim.ends_from, claim.ends_by) = (from.plus(ttl.as_duration()), by.plus(ttl.as_duration()));
        } else {
            if grant.fences != claim.block {
                return Err(format!("t{number} has {} fences and had {}", grant.fences, claim.block));
            }
            claim.lasts(ttl, from, by);
        }
        claim.check_deadline(number, ttl, grant.valid_until, from)?;
        Ok(Answer::Granted { fences: grant.fences, is_new })
    }

    fn busy(&self, number: usize, busy: &Busy) -> std::result::Result<Answer, String> {
        let holder = busy.holder.as_ref().map(|owner| self.claim_of(owner)).transpose()?;
        let longest = Duration::from_secs(TTLS_S[2]) + SLACK;
        if busy.remaining.is_some() != holder.is_some() || busy.remaining > Some(longest) {
            return Err(format!("holder {holder:?} has another {:?}", busy.remaining));
        }
        let is_one = self.claims[number].places.len() == 1;
        Ok(Answer::Busy { holder, waiters: is_one.then_some(busy.waiters) })
    }

    fn renewed(
        &mut self,
        shown: &Shown,
        ttl: Ttl,
        answer: Renewed,
        from: Deadline,
        by: Deadline,
    ) -> std::result::Result<Option<Loss>, String> {
        match answer {
            Renewed::Until(valid_until) => {
                let claim = &mut self.claims[shown.claim];
                claim.lasts(ttl, from, by);
                claim.check_deadline(shown.claim, ttl, valid_until, from)?;
                Ok(None)
            }
            Renewed::Lost(loss) => Ok(Some(loss)),
        }
    }

    /// A detach sets the end of a claim, once, and picks one fence of its block.
    fn detached(
        &mut self,
        shown: &Shown,
        ttl: Ttl,
        answer: Renewed,
        from: Deadline,
        by: Deadline,
    ) -> std::result::Result<Option<Loss>, String> {
        let fence = self.fence(shown);
        let claim = &mut self.claims[shown.claim];
        if let Renewed::Until(_) = answer
            && !claim.is_detached
        {
            claim.is_detached = true;
            (claim.ends_from, claim.ends_by) = (from.plus(ttl.as_duration()), by.plus(ttl.as_duration()));
            if fence.is_some() {
                (claim.fence, claim.block) = (fence, 1);
            }
        }
        self.renewed(shown, ttl, answer, from, by)
    }

    /// A conversion changes nothing of the end.
    fn converted(&mut self, number: usize, to: Share, grant: Grant) -> std::result::Result<Answer, String> {
        let is_new = self.claims[number].fence != Some(grant.fence);
        if is_new {
            self.rises(number, grant.fence, grant.fences)?;
        }
        let claim = &mut self.claims[number];
        if is_new {
            claim.older = claim.fence;
            (claim.fence, claim.block) = (Some(grant.fence), grant.fences);
        }
        claim.share = to;
        if grant.valid_until > claim.ends_by {
            return Err(format!("t{number} is believed in for longer than it was asked for"));
        }
        Ok(Answer::Converted { fences: grant.fences, is_new })
    }

    /// A later grant of the same name has a higher fence.
    fn rises(&mut self, number: usize, fence: Fence, fences: u16) -> std::result::Result<(), String> {
        for place in self.claims[number].places.clone() {
            let highest = &mut self.highest[place];
            if fence.get() <= *highest {
                return Err(format!("t{number} has the fence {fence}, and {highest} was given before"));
            }
            *highest = fence.get() + u64::from(fences) - 1;
        }
        Ok(())
    }

    fn claim_of(&self, owner: &Owner) -> std::result::Result<usize, String> {
        let number = owner.as_str().strip_prefix('t').and_then(|number| number.parse().ok());
        number
            .filter(|number| *number < self.claims.len())
            .ok_or_else(|| format!("`{owner}` is none of the claims"))
    }

    fn check_fence(&self, number: usize, fence: Option<Fence>) -> std::result::Result<(), String> {
        let granted = self.claims[number].fence;
        match granted == fence {
            true => Ok(()),
            false => Err(format!("t{number} has the fence {fence:?}, and was granted {granted:?}")),
        }
    }

    /// How things stand with a name. Checks the fences of the holders, and when they end.
    pub(super) fn view(&self, status: &Timed<Option<Status>>) -> std::result::Result<View, String> {
        let mut view = View::default();
        for holder in status.what.iter().flat_map(|status| &status.holders) {
            let number = self.claim_of(&holder.owner)?;
            view.holders.push((number, holder.share));
            self.check_fence(number, holder.fence)?;
            let claim = &self.claims[number];
            let longest = claim.ends_by.since(status.from) + SLACK;
            let shortest = claim.ends_from.since(status.by.plus(SLACK));
            if !(shortest..=longest).contains(&holder.remaining) {
                return Err(format!(
                    "t{number} has another {:?}, which is not between {shortest:?} and {longest:?}",
                    holder.remaining
                ));
            }
        }
        for waiter in status.what.iter().flat_map(|status| &status.waiters) {
            view.waiters.push((self.claim_of(&waiter.owner)?, waiter.share));
        }
        Ok(view)
    }

    /// Who holds and who waits, without a check.
    pub(super) fn glance(&self, status: &Option<Status>) -> View {
        let known = |owner: &Owner| self.claim_of(owner).unwrap_or(usize::MAX);
        let holders = status.iter().flat_map(|status| &status.holders);
        let waiters = status.iter().flat_map(|status| &status.waiters);
        View {
            holders: holders.map(|holder| (known(&holder.owner), holder.share)).collect(),
            waiters: waiters.map(|waiter| (known(&waiter.owner), waiter.share)).collect(),
        }
    }
}

impl Claimed {
    /// Moves the end on, never back.
    fn lasts(&mut self, ttl: Ttl, from: Deadline, by: Deadline) {
        self.ends_from = self.ends_from.max(from.plus(ttl.as_duration()));
        self.ends_by = self.ends_by.max(by.plus(ttl.as_duration()));
    }

    /// A deadline counts from before the request, and never lies behind the end.
    fn check_deadline(
        &self,
        number: usize,
        ttl: Ttl,
        valid_until: Deadline,
        from: Deadline,
    ) -> std::result::Result<(), String> {
        if (from.plus(ttl.validity())..=self.ends_by).contains(&valid_until) {
            return Ok(());
        }
        let lasts = valid_until.since(from);
        Err(format!("t{number} is believed in for {lasts:?}, and was asked for with {ttl}"))
    }
}
