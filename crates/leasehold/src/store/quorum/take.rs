//! How a claim becomes a grant: the rounds (B2 to B4), the wait between them, and what is given back (B5).

use std::time::Duration;

use redis::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::ledger::Page;
use super::node::{Answer, Form, Owed, Request};
use super::round::{self, Asked, Place, Sessions};
use super::{Fleet, only, script};
use crate::claim::{Acquired, Busy, Claim, Grant, Released, Ticket};
use crate::error::{Error, NodeSaid, Result};
use crate::fence::Fence;
use crate::jitter::jitter;
use crate::name::Name;
use crate::store::redis::reply::{busy, fence_read, text};
use crate::sync::Arc;
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// How often a fence is proposed before the others are left to it for a moment.
const ROUNDS_MAX: usize = 4;

/// For how long one who got no majority keeps off, when nobody else got one either: at first, and at most.
const SPLIT_MIN: Duration = Duration::from_millis(2);
const SPLIT_MAX: Duration = Duration::from_millis(64);

/// How long one who was told by some nodes that the name is free waits to hear it from a majority.
const CHORUS: Duration = Duration::from_millis(20);

/// A node's vote on one fence.
#[derive(Debug)]
enum Vote {
    Yes {
        node_us: u64,
    },
    /// Somebody else has it there.
    Busy {
        value: String,
        left_ms: i64,
    },
    /// It is free there, for another fence: one above `last`, and near its clock.
    Free {
        node_us: u64,
        last: u64,
        said: NodeSaid,
    },
    /// No vote.
    None(NodeSaid),
}

/// The votes so far.
struct Votes(Vec<Option<Vote>>);

/// What a round came to, without a majority.
enum Setback {
    /// Somebody has it, or may have it.
    Held(Busy),
    /// Nobody has: several asked at once.
    Split,
    /// Too few can vote.
    Short(Error),
}

impl Fleet {
    pub(super) async fn acquire(self: &Arc<Self>, claim: &Claim) -> Result<Acquired> {
        let name = only(&claim.ticket)?;
        self.settings.check(claim.ttl)?;
        let mut in_line = false;
        let answer = self.take_or_wait(claim, name, &mut in_line).await;
        if in_line && !matches!(answer, Ok(Acquired::Granted(_))) {
            // Nobody is to be told of what it does not wait for any more.
            let page = self.ledger.of(&claim.ticket.token);
            self.give_back(&claim.ticket.token, name, page, Return::Final).settled_by_quorum(self).await;
        }
        answer
    }

    /// Until it is taken, or busy is the answer.
    async fn take_or_wait(
        self: &Arc<Self>,
        claim: &Claim,
        name: &Name,
        in_line: &mut bool,
    ) -> Result<Acquired> {
        let token = &claim.ticket.token;
        let waiting = self.calls.hang(token);
        let (mut shortages, mut splits) = (0, 0);
        // One that has been asked for before is asked for again as it was.
        let mut fence = self.ledger.of(token).filter(|page| !page.released).map(|page| page.highest);
        let mut since = None;
        loop {
            let waits = !claim.wait.is_over(self.clock.now());
            waiting.reset();
            let proposed = fence.take().unwrap_or_else(|| {
                // What was given back has barred the one above it.
                self.next_fence(self.ledger.of(token).map_or(0, |page| page.highest + 2))
            });
            let since = *since.get_or_insert(proposed);
            *in_line |= waits;
            let pause = match self.attempt(claim, name, proposed, waits.then_some(since)).await {
                Ok(grant) => return Ok(Acquired::Granted(grant)),
                Err(Setback::Held(busy)) if !waits => return Ok(Acquired::Busy(busy)),
                Err(Setback::Held(busy)) => {
                    (shortages, splits) = (0, 0);
                    let pause = jitter(self.settings.retry_delay / 2, self.settings.retry_delay);
                    // One that ends before is looked at when it does.
                    busy.remaining.map_or(pause, |left| pause.min(left + Duration::from_millis(1)))
                }
                Err(Setback::Split) if !waits && splits >= self.settings.retry_count => {
                    return Ok(Acquired::Busy(Busy::default()));
                }
                Err(Setback::Split) => {
                    (shortages, splits) = (0, splits + 1);
                    jitter(Duration::ZERO, (SPLIT_MIN * (1 << splits.min(5))).min(SPLIT_MAX))
                }
                Err(Setback::Short(error)) if !waits || shortages >= self.settings.retry_count => {
                    return Err(error);
                }
                Err(Setback::Short(_)) => {
                    shortages += 1;
                    jitter(self.settings.retry_delay / 2, self.settings.retry_delay)
                }
            };
            let mut until = claim.wait.cap(self.clock.now().plus(pause));
            while let Some((free, last)) = self.clock.until(until, waiting.heard()).await {
                self.saw(last);
                if free >= self.quorum() {
                    break;
                }
                // The others are on their way, or will never come.
                until = until.min(self.clock.now().plus(CHORUS));
            }
        }
    }

    /// One token, one fence; a second only if that alone was in the way.
    async fn attempt(
        self: &Arc<Self>,
        claim: &Claim,
        name: &Name,
        mut fence: u64,
        since: Option<u64>,
    ) -> Result<Grant, Setback> {
        let (token, ttl) = (&claim.ticket.token, claim.ttl);
        let mut votes = Votes::none(self.nodes.len());
        let mut over = Sessions::default();
        for _ in 0..ROUNDS_MAX {
            let sent = self.clock.now();
            self.ledger.proposed(token, fence, since.is_some(), sent, self.gone_by(sent, ttl));
            let proposal = self.proposal(claim, name, fence, since);
            let (_, mut asked) = round::ask(self.everybody(), proposal, sent);
            votes = Votes::none(self.nodes.len());
            over = asked.over.clone();
            while let Some((place, answer)) = asked.next().await {
                votes.0[place] = Some(self.vote(answer, fence));
                if votes.yes() >= self.quorum() {
                    let validity = self.settings.validity(ttl);
                    let valid_until = sent.plus(validity);
                    let Ok(number) = Fence::new(fence) else { break };
                    if self.clock.now() >= valid_until {
                        // It took so long that the first of them may have ended.
                        break;
                    }
                    self.saw(fence);
                    let rest = self.hear_the_rest(token, name, fence, votes, asked);
                    // No renewal repairs a detached lease that too few nodes have, and its process may end at once.
                    // The pause ends with the caller's wait, and takes no more than a part of the validity.
                    if claim.detached {
                        let last_call = round::last_call_after(sent, self.clock.now());
                        let last_call = claim.wait.cap(last_call).min(sent.plus(validity / 4));
                        self.clock.until(last_call, rest).await;
                    }
                    return Ok(Grant { fence: number, fences: 1, valid_until });
                }
                // Not before it is known whether others are in the way, or too few can vote.
                if votes.yes() + votes.open() < self.quorum() && votes.able() >= self.quorum() {
                    break;
                }
            }
            let is_for_the_fence_alone =
                votes.yes() < self.quorum() && votes.yes() + votes.free() >= self.quorum();
            match votes.lowest(fence, self.settings.skew, self.quorum()).filter(|_| is_for_the_fence_alone) {
                Some(next) => fence = next,
                None => break,
            }
        }
        // Everywhere, also where the answer was no or never came; unless nobody can have anything of it.
        if votes.0.iter().any(|vote| vote.as_ref().is_none_or(Vote::may_be_yes)) {
            let page = self.ledger.of(token);
            let answered = votes.answered();
            let form = if answered.len() == self.nodes.len() { Form::Digest } else { Form::Text };
            self.give_back(token, name, page, Return::Failed { over: &over, form }).settled(answered).await;
        }
        Err(self.setback(votes, fence, ttl))
    }

    fn proposal(&self, claim: &Claim, name: &Name, fence: u64, since: Option<u64>) -> Request {
        let settings = &self.settings;
        let args = vec![
            claim.ticket.token.expose().to_owned(),
            format!("{fence:x}"),
            claim.ttl.as_ms().to_string(),
            settings.quarantine.as_millis().to_string(),
            if claim.detached { "!" } else { "" }.to_owned(),
            since.map_or_else(String::new, |_| self.channel.clone()),
            since.map_or_else(String::new, |since| format!("{since:x}")),
            // Whoever waits says so again with each look.
            (settings.retry_delay * 10).as_millis().max(2_000).to_string(),
        ];
        self.request(&script::ACQUIRE, vec![self.key(name)], args)
    }

    fn vote(&self, answer: Answer, fence: u64) -> Vote {
        let heard = match answer {
            Ok(heard) => heard,
            Err(said) => return Vote::None(said),
        };
        let node_us = heard.node_us;
        let word = heard.values.first().map(text).unwrap_or_default();
        let last = |at: usize| {
            heard.values.get(at).map(text).and_then(|last| fence_read(&last)).map_or(0, Fence::get)
        };
        let ahead_us = i64::try_from(i128::from(node_us) - i128::from(fence)).unwrap_or(i64::MAX);
        match word.as_str() {
            "busy" => {
                self.saw(last(3));
                let left_ms = match heard.values.get(2) {
                    Some(Value::Int(left)) => *left,
                    _ => 0,
                };
                Vote::Busy { value: heard.values.get(1).map(text).unwrap_or_default(), left_ms }
            }
            "young" => Vote::None(NodeSaid::Quarantined {
                remaining: self.settings.quarantine.saturating_sub(heard.age),
            }),
            // The node's own word of its age is not enough.
            "yes" | "fence" | "clock" => match (self.unless_young(heard.age), word.as_str()) {
                (Err(_), "clock") => Vote::None(NodeSaid::ClockOff { ahead_us }),
                (Err(said), _) => Vote::None(said),
                (Ok(()), "yes") => Vote::Yes { node_us },
                (Ok(()), "fence") => {
                    self.saw(last(1));
                    Vote::Free { node_us, last: last(1), said: NodeSaid::Fenced }
                }
                (Ok(()), _) => Vote::Free { node_us, last: last(1), said: NodeSaid::ClockOff { ahead_us } },
            },
            "foreign" => {
                let why = "the key there is of another type, which is no lock; use another name or prefix, or remove it";
                Vote::None(NodeSaid::Refused { why: why.to_owned() })
            }
            _ => Vote::None(NodeSaid::NoAnswer { why: "its answer makes no sense".to_owned() }),
        }
    }

    /// Why it was not granted.
    fn setback(&self, votes: Votes, fence: u64, ttl: Ttl) -> Setback {
        if votes.yes() >= self.quorum() {
            let why = format!(
                "a majority had answered only when the TTL of {ttl} was over; use a longer one, or nearer nodes"
            );
            return Setback::Short(Error::Unreachable { store: "redlock", why });
        }
        let is_contended = votes.able() >= self.quorum();
        let missing = self.nodes.len() - votes.able();
        let is_open = votes.yes() + votes.free() >= self.quorum();
        match votes.holder() {
            Some((value, left_ms, count)) if is_contended && count + missing >= self.quorum() => {
                Setback::Held(busy(value, left_ms, 0))
            }
            // There is no fence that enough of them would accept.
            _ if is_open && votes.lowest(fence, self.settings.skew, self.quorum()).is_none() => {
                Setback::Short(self.shortage(votes))
            }
            _ if is_contended => Setback::Split,
            _ => Setback::Short(self.shortage(votes)),
        }
    }

    fn shortage(&self, votes: Votes) -> Error {
        let agreed = votes.yes();
        let said = votes.0.into_iter().map(|vote| match vote {
            None => NodeSaid::TimedOut { after: self.settings.timeout },
            Some(Vote::Yes { .. }) => NodeSaid::Agreed,
            Some(Vote::Busy { value, left_ms }) => {
                let busy = busy(&value, left_ms, 0);
                let holder = busy.holder.unwrap_or_else(Owner::this_process);
                NodeSaid::Held { holder, remaining: busy.remaining }
            }
            Some(Vote::Free { said, .. } | Vote::None(said)) => said,
        });
        self.short("granted", agreed, said.collect())
    }

    /// Who answers when the majority has: it may turn out that no more nodes hold it than have to.
    fn hear_the_rest(
        self: &Arc<Self>,
        token: &Token,
        name: &Name,
        fence: u64,
        mut votes: Votes,
        mut asked: Asked,
    ) -> JoinHandle<()> {
        let (fleet, token, name) = (self.clone(), token.clone(), name.clone());
        tokio::spawn(async move {
            while let Some((place, answer)) = asked.next().await {
                votes.0[place] = Some(fleet.vote(answer, fence));
            }
            let missing =
                votes.0.iter().enumerate().filter(|(_, vote)| !matches!(vote, Some(Vote::Yes { .. })));
            fleet.note_spread(&token, &name, fence, missing.map(|(place, _)| place).collect());
        })
    }

    pub(super) async fn release(self: &Arc<Self>, ticket: &Ticket) -> Result<Released> {
        let name = only(ticket)?;
        let page = self.ledger.release(&ticket.token);
        let mut returned = self.give_back(&ticket.token, name, page, Return::Final);
        let mut said: Vec<Option<NodeSaid>> = self.nodes.iter().map(|_| None).collect();
        let (mut released, mut nothing) = (0, 0);
        while let Some((place, answer)) = returned.0.recv().await {
            match answer {
                Ok(true) => (said[place], released) = (Some(NodeSaid::Agreed), released + 1),
                Ok(false) => (said[place], nothing) = (Some(NodeSaid::Gone), nothing + 1),
                Err(silence) => said[place] = Some(silence),
            }
            if released >= self.quorum() {
                return Ok(Released::Released);
            }
            if self.nodes.len() - nothing < self.quorum() {
                return Ok(Released::NotHeld);
            }
        }
        let said = said.into_iter().map(|said| said.unwrap_or_else(gone)).collect();
        match self.short("released", released, said) {
            error if error.is_outcome_unknown() => Err(error),
            // Those that were not reached may have it, and are told when they can be.
            error => Err(Error::Unreachable { store: "redlock", why: error.to_string() }),
        }
    }

    /// Sends a release to every node, with the highest fence that was proposed, so that nothing of before is accepted later.
    /// A node that does not answer is told again when it can be, whoever goes on listening here.
    fn give_back(
        self: &Arc<Self>,
        token: &Token,
        name: &Name,
        page: Option<Page>,
        what: Return<'_>,
    ) -> Returned {
        let is_over = matches!(what, Return::Final);
        let none = Sessions::default();
        let (before, form) = match what {
            Return::Final => (&none, Form::Digest),
            Return::Failed { over, form } => (over, form),
        };
        let is_in_line = page.is_none_or(|page| page.waited);
        let barred = page.map(|page| page.highest + u64::from(page.put_back));
        let args = vec![
            token.expose().to_owned(),
            page.map_or_else(String::new, |page| format!("{:x}", page.highest)),
            barred.map_or_else(String::new, |barred| format!("{barred:x}")),
            if is_over && is_in_line { self.channel.clone() } else { String::new() },
        ];
        let request = self.request_at_any_time(&script::RELEASE, vec![self.key(name)], args);
        let request = Request { form, ..request };
        let now = self.clock.now();
        let (request, mut asked) = round::ask_after(before, self.everybody(), request, now);
        let until = self.gone_by(now, self.settings.max_ttl);
        let (sender, returned) = unbounded_channel();
        let (fleet, token) = (self.clone(), token.clone());
        tokio::spawn(async move {
            while let Some((place, answer)) = asked.next().await {
                let answer = answer.map(|heard| heard.values.first() == Some(&Value::Int(1)));
                if matches!(&answer, Err(said) if !matches!(said, NodeSaid::Refused { .. })) {
                    fleet.nodes[place].owe(Owed { request: request.clone(), until });
                }
                let _ = sender.send((place, answer));
            }
            if is_over {
                fleet.ledger.forget(&token);
            }
        });
        Returned(returned)
    }
}

/// Why a token is released.
enum Return<'a> {
    /// It is not used again.
    Final,
    /// A round failed, and another may follow. Each node is asked over the connection of that round, where there is no newer
    /// one: it may be slow and not dead. By text where a node did not answer.
    Failed { over: &'a Sessions, form: Form },
}

/// What became of a release on each node: whether it held it there, or no answer.
struct Returned(UnboundedReceiver<(Place, Result<bool, NodeSaid>)>);

impl Returned {
    /// Ends when a quorum has answered, and the other nodes had a chance to.
    async fn settled_by_quorum(mut self, fleet: &Fleet) {
        let answers = futures_util::stream::poll_fn(move |context| self.0.poll_recv(context));
        round::collect(answers, fleet.nodes.len(), fleet.quorum(), &fleet.clock).await;
    }

    /// Ends when these nodes have answered.
    async fn settled(mut self, mut places: Vec<Place>) {
        while !places.is_empty()
            && let Some((place, _)) = self.0.recv().await
        {
            places.retain(|other| *other != place);
        }
    }
}

impl Vote {
    /// Whether the node may have something of it.
    fn may_be_yes(&self) -> bool {
        use NodeSaid::{NoAnswer, Quarantined, TimedOut};
        matches!(self, Vote::Yes { .. } | Vote::None(TimedOut { .. } | NoAnswer { .. } | Quarantined { .. }))
    }
}

impl Votes {
    fn none(nodes: usize) -> Self {
        Votes((0..nodes).map(|_| None).collect())
    }

    fn count(&self, is_it: impl Fn(&Vote) -> bool) -> usize {
        self.0.iter().flatten().filter(|vote| is_it(vote)).count()
    }

    fn yes(&self) -> usize {
        self.count(|vote| matches!(vote, Vote::Yes { .. }))
    }

    fn free(&self) -> usize {
        self.count(|vote| matches!(vote, Vote::Free { .. }))
    }

    /// How many can vote: not one whose clock is too far off.
    fn able(&self) -> usize {
        use NodeSaid::ClockOff;
        self.count(|vote| !matches!(vote, Vote::None(_) | Vote::Free { said: ClockOff { .. }, .. }))
    }

    /// How many are still to come.
    fn open(&self) -> usize {
        self.0.iter().filter(|vote| vote.is_none()).count()
    }

    /// Who is there to answer again.
    fn answered(&self) -> Vec<Place> {
        let is_there = |vote: &Option<Vote>| {
            !matches!(
                vote,
                None | Some(Vote::None(
                    NodeSaid::TimedOut { .. } | NodeSaid::NoAnswer { .. } | NodeSaid::NotReached { .. }
                ))
            )
        };
        self.0.iter().enumerate().filter(|(_, vote)| is_there(vote)).map(|(place, _)| place).collect()
    }

    /// Who has it on more nodes than anybody else, for how long, and on how many.
    fn holder(&self) -> Option<(&str, i64, usize)> {
        let held = || {
            self.0.iter().flatten().filter_map(|vote| match vote {
                Vote::Busy { value, left_ms } => Some((value.as_str(), *left_ms)),
                _ => None,
            })
        };
        let counted = held()
            .map(|(value, left_ms)| (value, left_ms, held().filter(|(other, _)| *other == value).count()));
        counted.max_by_key(|(_, left_ms, count)| (*count, *left_ms))
    }

    /// The lowest fence that enough of those who said yes, or would have to another, can accept soon: the request travels, and
    /// the clocks go on. So a fence behind a node's clock by nearly all of `skew` does not count as acceptable.
    fn lowest(&self, fence: u64, skew: Duration, quorum: usize) -> Option<u64> {
        let skew = u64::try_from(skew.as_micros()).unwrap_or(u64::MAX);
        let ranges: Vec<(u64, u64)> = self
            .0
            .iter()
            .flatten()
            .filter_map(|vote| match vote {
                Vote::Yes { node_us } => Some((*node_us, fence)),
                Vote::Free { node_us, last, .. } => Some((*node_us, *last)),
                _ => None,
            })
            .map(|(node_us, last)| {
                ((last + 1).max(node_us.saturating_sub(skew / 2)), node_us.saturating_add(skew))
            })
            .collect();
        let accepts =
            |number: u64| ranges.iter().filter(|(least, most)| (*least..=*most).contains(&number)).count();
        ranges.iter().map(|(least, _)| *least).filter(|least| accepts(*least) >= quorum).min()
    }
}

fn gone() -> NodeSaid {
    NodeSaid::NoAnswer { why: "the client was closed".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(5);
    const NOW: u64 = 1_700_000_000_000_000;

    fn free(last: u64, ahead_us: u64) -> Option<Vote> {
        Some(Vote::Free { node_us: NOW + ahead_us, last, said: NodeSaid::Fenced })
    }

    #[test]
    fn the_next_fence_is_the_lowest_that_a_majority_can_accept() {
        let hour = 3_600_000_000;
        let yes = || Some(Vote::Yes { node_us: NOW });
        // Two said yes to NOW, one has given NOW + 7.
        assert_eq!(Votes(vec![yes(), yes(), free(NOW + 7, 0)]).lowest(NOW, S, 3), Some(NOW + 8));
        // One is not needed, be it for its fence or for its clock.
        let votes = || vec![yes(), yes(), free(NOW + 7, 0), free(NOW + 9_000, 0), free(0, hour)];
        assert_eq!(Votes(votes()).lowest(NOW, S, 3), Some(NOW + 8));
        assert_eq!(Votes(votes()).lowest(NOW, S, 4), Some(NOW + 9_001));
        assert_eq!(
            Votes(votes()).lowest(NOW, S, 5),
            None,
            "no fence is near two clocks that are an hour apart"
        );
        // The first proposal was dated by clocks that are off. The next one is acceptable for some seconds.
        let moved = vec![free(0, 0), free(0, 100), free(0, 200), free(0, hour), free(0, hour)];
        let next = Votes(moved).lowest(NOW + hour, S, 3);
        assert!(next.is_some_and(|next| (NOW - 3_000_000..=NOW).contains(&next)), "{next:?}");
        // A fence that ran ahead of the clocks by more than they may differ is to be waited for.
        assert_eq!(Votes(vec![free(NOW + hour, 0), free(NOW + hour, 0), yes()]).lowest(NOW, S, 2), None);
    }
}
