//! What is decided and done, one deal each.

use redis::{Cmd, Pipeline, Value, cmd};

use super::super::ears::notice_channel;
use super::super::reply::{self, limit};
use super::deal::{Deal, Held, Sight, Trouble, held, integer, is_refused};
use super::mark::Mark;
use super::view::{GONE, line, several, tell_first};
use super::{Bare, unsupported};
use crate::claim::{Adopted, Busy, Claim, Evicted, Grant, Released, Renewed, Ticket};
use crate::clock::Deadline;
use crate::error::Result;
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::Notice;
use crate::ttl::Ttl;

/// Scripts count in floating point.
const FENCE_MAX: u64 = (1 << 53) - 1;

/// How far into a line is looked for somebody who lives.
const LOOKED_AT: i64 = 128;

/// One attempt to take a name.
#[derive(Debug)]
pub(super) enum Taken {
    Granted(Grant),
    Busy(Busy),
    /// Somebody was faster, with this name or another: whether it is free is not known.
    Again,
}

impl Bare {
    /// Takes a name that nobody holds and nobody waits for; one that is held by this token is held for longer.
    pub(super) async fn take(&self, claim: &Claim, name: &Name) -> Result<Taken, Trouble> {
        let key = self.key(name);
        let _turn = self.turn().await?;
        let mut deal = Deal::begin(&self.wires).await?;
        let looked = self.clock.now();
        let sight = deal.look(&self.last, &key, true).await?;
        let taken = match &sight.held {
            Held::Several => match several(&mut deal.call, &key).await?.as_slice() {
                [] => Taken::Again,
                holders => Taken::Busy(shared_by(holders, sight.waiters)),
            },
            // Gone between two looks.
            Held::Alone(_) if sight.left_ms == GONE => Taken::Again,
            Held::Alone(value) => match Mark::read(value).filter(|mark| mark.is_of(&claim.ticket)) {
                Some(mark) => match deal.close(&stretched(&key, sight.left_ms, claim.ttl)).await? {
                    Some(_) => Taken::Granted(self.granted(&mark, claim.ttl, looked)),
                    None => Taken::Again,
                },
                None => Taken::Busy(reply::busy(value, sight.left_ms, sight.waiters)),
            },
            Held::Nobody if sight.waiters > 0 && is_waited_for(&mut deal, &key, &sight).await? => {
                Taken::Busy(Busy { holder: None, remaining: None, waiters: sight.waiters })
            }
            Held::Nobody => self.grant(&mut deal, claim, &key, &sight).await?,
        };
        deal.leave();
        Ok(taken)
    }

    async fn grant(
        &self,
        deal: &mut Deal<'_>,
        claim: &Claim,
        key: &str,
        sight: &Sight,
    ) -> Result<Taken, Trouble> {
        let fences = claim.fences.max(1);
        let first = self.next(sight, u64::from(fences))?;
        let token = claim.ticket.token.expose().to_owned();
        let fence = Fence::new(first)?;
        let mark = Mark { token, fence, fences, detached: claim.detached, has_others: false };
        let changes = [
            self.raised(first + u64::from(fences) - 1),
            cmd("SET").arg(key).arg(mark.text()).arg("NX").arg("PX").arg(claim.ttl.as_ms()).take(),
        ];
        let sent = self.clock.now();
        match deal.close(&changes).await?.as_deref() {
            Some([_, Value::Okay]) => Ok(Taken::Granted(self.granted(&mark, claim.ttl, sent))),
            _ => Ok(Taken::Again),
        }
    }

    fn granted(&self, mark: &Mark, ttl: Ttl, sent: Deadline) -> Grant {
        let (fence, fences) = (mark.fence, mark.fences);
        self.saw(fence.get() + u64::from(fences) - 1);
        Grant { fence, fences, valid_until: sent.plus(ttl.validity()) }
    }

    /// The first of so many new fences.
    fn next(&self, sight: &Sight, fences: u64) -> Result<u64> {
        let first = sight.now_us.max(sight.last + 1).max(self.lowest());
        if first + fences > FENCE_MAX { Err(limit()) } else { Ok(first) }
    }

    fn raised(&self, last: u64) -> Cmd {
        cmd("SET").arg(&self.last).arg(format!("{last:x}")).take()
    }

    /// Many at once, as one deal; None where somebody was faster at any of them.
    pub(super) async fn renew_together(
        &self,
        due: &[(&Ticket, &Name, Ttl)],
    ) -> Result<Option<Vec<Result<Renewed>>>, Trouble> {
        let keys: Vec<String> = due.iter().map(|(_, name, _)| self.key(name)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let looks = |key: &&str| [cmd("GET").arg(*key).take(), cmd("PTTL").arg(*key).take()];
        let looks: Vec<Cmd> = keys.iter().flat_map(looks).collect();
        let mut deal = Deal::begin(&self.wires).await?;
        let sent = self.clock.now();
        let mut seen = deal.watch(&keys, &looks).await?.into_iter();
        let mut next = || seen.next().unwrap_or(Ok(Value::Nil));
        let (mut answers, mut changes, mut shared) = (Vec::new(), Vec::new(), Vec::new());
        for (at, ((ticket, _, ttl), key)) in due.iter().zip(&keys).enumerate() {
            let (held, left_ms) = (held(next()), next());
            answers.push(match (held, left_ms) {
                (Err(error), _) | (_, Err(error)) => Err(Trouble::from(error).error),
                (Ok(Held::Nobody), _) => Ok(Renewed::Lost(Loss::Deleted)),
                (Ok(Held::Several), _) => {
                    shared.push(at);
                    Ok(Renewed::Lost(Loss::Taken))
                }
                (Ok(Held::Alone(value)), Ok(left_ms)) => match Mark::read(&value) {
                    Some(mark)
                        if mark.is_of(ticket) && ticket.fence.is_none_or(|fence| fence == mark.fence) =>
                    {
                        changes.extend(stretched(key, integer(&left_ms), *ttl));
                        Ok(Renewed::Until(sent.plus(ttl.validity())))
                    }
                    _ => Ok(Renewed::Lost(Loss::Taken)),
                },
            });
        }
        if deal.close(&changes).await?.is_none() {
            deal.leave();
            return Ok(None);
        }
        for at in shared {
            if let Err(trouble) = self.is_not_among(&mut deal, keys[at], due[at].0).await {
                answers[at] = Err(trouble.error);
            }
        }
        deal.leave();
        Ok(Some(answers))
    }

    /// By one command, where the server has it and all that stands in the key is known; true if that was it.
    pub(super) async fn release_natively(&self, ticket: &Ticket, key: &str) -> Result<bool, Trouble> {
        let (Some(native), Some(mark)) = (self.native(), Mark::of(ticket)) else { return Ok(false) };
        let mut call = self.wires.call().await?;
        let mut commands = Pipeline::new();
        commands.add_command(native.delete(key, &mark.text())).cmd("LLEN").arg(format!("{{{key}}}:line"));
        let mut answers = call.ask(&mut commands).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let (deleted, waiters) = (next(), next());
        let is_done = match deleted {
            Ok(deleted) => integer(&deleted) == 1,
            Err(error) if error.code() == Some("WRONGTYPE") => false,
            Err(error) if is_refused(&error) => {
                self.without_native();
                false
            }
            Err(error) => return Err(error.into()),
        };
        let is_waited_for = waiters.is_ok_and(|waiters| integer(&waiters) > 0);
        if !(is_done && is_waited_for) || tell_first(&mut call, key).await.is_ok() {
            call.done();
        }
        Ok(is_done)
    }

    /// Gives up what the token holds.
    ///
    /// Whoever does not know the fence may have a request under way that nobody waits for any more. What that has looked at is
    /// touched, so that it is not executed after this.
    pub(super) async fn let_go(&self, ticket: &Ticket, key: &str) -> Result<Option<Released>, Trouble> {
        let is_unsure = ticket.fence.is_none();
        let _turn = if is_unsure { Some(self.turn().await?) } else { None };
        let mut deal = Deal::begin(&self.wires).await?;
        let sight = deal.look(&self.last, key, is_unsure).await?;
        let released = match &sight.held {
            Held::Alone(value) if Mark::read(value).is_some_and(|mark| mark.is_of(ticket)) => {
                match deal.close(&[cmd("DEL").arg(key).take()]).await? {
                    Some(_) if sight.waiters > 0 && tell_first(&mut deal.call, key).await.is_err() => {
                        return Ok(Some(Released::Released));
                    }
                    Some(_) => Some(Released::Released),
                    None => None,
                }
            }
            // Who holds it now took it after that request had looked: it does not happen.
            Held::Alone(_) => Some(Released::NotHeld),
            Held::Several => {
                self.is_not_among(&mut deal, key, ticket).await?;
                Some(Released::NotHeld)
            }
            Held::Nobody if is_unsure => {
                let last = sight.last_text.unwrap_or_else(|| format!("{:x}", sight.now_us));
                let touched = cmd("SET").arg(&self.last).arg(last).take();
                deal.close(&[touched]).await?.map(|_| Released::NotHeld)
            }
            Held::Nobody => Some(Released::NotHeld),
        };
        deal.leave();
        Ok(released)
    }

    /// By one command, where the server has it and this is what stands in the key; true if that was it.
    pub(super) async fn detach_natively(
        &self,
        ticket: &Ticket,
        key: &str,
        ttl: Ttl,
    ) -> Result<bool, Trouble> {
        let (Some(native), Some(mark)) = (self.native(), Mark::of(ticket)) else { return Ok(false) };
        let from = mark.text();
        let to = Mark { detached: true, ..mark }.text();
        let mut call = self.wires.call().await?;
        let mut commands = Pipeline::new();
        commands.add_command(native.set(key, &from, &to, ttl.as_ms()));
        let answer = call.ask(&mut commands).await?.pop().unwrap_or(Ok(Value::Nil));
        let is_done = match answer {
            Ok(answer) => answer == Value::Okay,
            Err(error) if error.code() == Some("WRONGTYPE") => false,
            Err(error) if is_refused(&error) => {
                self.without_native();
                false
            }
            Err(error) => return Err(error.into()),
        };
        // The first in line watches its end, which has changed.
        if !is_done || tell_first(&mut call, key).await.is_ok() {
            call.done();
        }
        Ok(is_done)
    }

    /// Has a claim live by its TTL alone, which counts from now; of one that does already, moves the end on, never back.
    pub(super) async fn let_live(
        &self,
        ticket: &Ticket,
        key: &str,
        ttl: Ttl,
    ) -> Result<Option<Renewed>, Trouble> {
        let mut deal = Deal::begin(&self.wires).await?;
        let sent = self.clock.now();
        let looks = [cmd("GET").arg(key).take(), cmd("PTTL").arg(key).take()];
        let mut seen = deal.watch(&[key], &looks).await?.into_iter();
        let mut next = || seen.next().unwrap_or(Ok(Value::Nil));
        let (held, left_ms) = (held(next())?, integer(&next()?));
        let value = match held {
            Held::Alone(value) => value,
            Held::Nobody => {
                deal.leave();
                return Ok(Some(Renewed::Lost(Loss::Deleted)));
            }
            Held::Several => {
                self.is_not_among(&mut deal, key, ticket).await?;
                deal.leave();
                return Ok(Some(Renewed::Lost(Loss::Taken)));
            }
        };
        let mark = Mark::read(&value)
            .filter(|mark| mark.is_of(ticket) && ticket.fence.is_none_or(|fence| mark.has(fence)));
        let Some(mark) = mark else {
            deal.leave();
            return Ok(Some(Renewed::Lost(Loss::Taken)));
        };
        let changes = if mark.detached {
            stretched(key, left_ms, ttl)
        } else {
            let fences = if ticket.fence.is_some() { 1 } else { mark.fences };
            let mark = Mark { fence: ticket.fence.unwrap_or(mark.fence), fences, detached: true, ..mark };
            vec![cmd("SET").arg(key).arg(mark.text()).arg("PX").arg(ttl.as_ms()).take()]
        };
        let done = deal.close(&changes).await?;
        if done.is_none() || tell_first(&mut deal.call, key).await.is_ok() {
            deal.leave();
        }
        Ok(done.map(|_| Renewed::Until(sent.plus(ttl.validity()))))
    }

    /// Takes a name from whoever holds it, and raises the fence.
    pub(super) async fn take_away(
        &self,
        name: &Name,
        only: Option<Fence>,
    ) -> Result<Option<Evicted>, Trouble> {
        let key = self.key(name);
        let _turn = self.turn().await?;
        let mut deal = Deal::begin(&self.wires).await?;
        let sight = deal.look(&self.last, &key, true).await?;
        let found = match &sight.held {
            Held::Nobody => Vec::new(),
            Held::Alone(value) => {
                vec![Value::BulkString(value.clone().into_bytes()), Value::Int(sight.left_ms)]
            }
            Held::Several => several(&mut deal.call, &key).await?,
        };
        let is_meant = |pair: &&[Value]| {
            only.is_none() || reply::holders(pair).first().is_some_and(|holder| holder.fence == only)
        };
        let evicted: Vec<Value> = found.chunks_exact(2).filter(is_meant).flatten().cloned().collect();
        let holders = reply::holders(&evicted);
        let remove = match (only, evicted.first()) {
            (Some(_), None) => {
                deal.leave_unchanged().await;
                return Ok(Some(Evicted { holders }));
            }
            (Some(_), Some(member)) if matches!(sight.held, Held::Several) => {
                cmd("ZREM").arg(&key).arg(reply::text(member)).take()
            }
            _ => cmd("DEL").arg(&key).take(),
        };
        let last = self.next(&sight, 1)?;
        let done = deal.close(&[self.raised(last), remove]).await?;
        // A client without the right to publish leaves it to the next renewal.
        let mut notice = Pipeline::new();
        let text = Notice::Evicted { name: name.clone() }.to_text(&self.settings.prefix);
        notice.cmd("PUBLISH").arg(notice_channel(&self.settings.prefix)).arg(text);
        let is_told = done.is_none() || holders.is_empty() || deal.call.ask(&mut notice).await.is_ok();
        let is_done = done.is_none() || sight.waiters == 0 || tell_first(&mut deal.call, &key).await.is_ok();
        if is_told && is_done {
            deal.leave();
        }
        Ok(done.map(|_| Evicted { holders }))
    }

    /// Gives an end to a key that has none.
    pub(super) async fn give_end(&self, name: &Name, ttl: Ttl) -> Result<Option<Adopted>, Trouble> {
        let key = self.key(name);
        let mut deal = Deal::begin(&self.wires).await?;
        let sight = deal.look(&self.last, &key, false).await?;
        let word = |word: &str| Value::BulkString(word.as_bytes().to_vec());
        let answer = match &sight.held {
            Held::Alone(value) if sight.left_ms >= 0 => {
                Some(vec![word("ends"), word(value), Value::Int(sight.left_ms)])
            }
            Held::Alone(value) if sight.left_ms != GONE => {
                let done = deal.close(&stretched(&key, sight.left_ms, ttl)).await?;
                done.map(|_| vec![word("adopted"), word(value)])
            }
            Held::Alone(_) | Held::Nobody => Some(vec![word("nothing")]),
            // Each of them has an end.
            Held::Several => match several(&mut deal.call, &key).await?.as_slice() {
                [.., member, left_ms] => {
                    let member = reply::text(member);
                    let value = member.split_once(':').map_or("", |(_, value)| value);
                    Some(vec![word("ends"), word(value), left_ms.clone()])
                }
                _ => Some(vec![word("nothing")]),
            },
        };
        deal.leave();
        Ok(answer.map(|answer| reply::Reply::new(Value::Array(answer))?.adopted()).transpose()?)
    }

    /// An error where this token is one of several that share a key: what it has cannot be changed without scripts.
    async fn is_not_among(&self, deal: &mut Deal<'_>, key: &str, ticket: &Ticket) -> Result<(), Trouble> {
        let sign = format!(":{}#", ticket.token.expose());
        // What is no lock has nobody in it.
        let members = match several(&mut deal.call, key).await {
            Err(Trouble { error: crate::Error::Refused { .. }, is_passing: false }) => return Ok(()),
            found => found?,
        };
        match members.iter().any(|member| reply::text(member).contains(&sign)) {
            true => Err(unsupported("shared locks and permits").into()),
            false => Ok(()),
        }
    }
}

/// What makes a key last at least so long.
fn stretched(key: &str, left_ms: i64, ttl: Ttl) -> Vec<Cmd> {
    let is_short = u64::try_from(left_ms).map_or(true, |left_ms| left_ms < ttl.as_ms());
    let longer = || cmd("PEXPIRE").arg(key).arg(ttl.as_ms()).take();
    is_short.then(longer).into_iter().collect()
}

fn shared_by(holders: &[Value], waiters: usize) -> Busy {
    let holder = reply::holders(holders).into_iter().next();
    let remaining = holder.as_ref().map(|holder| holder.remaining);
    Busy { holder: holder.map(|holder| holder.owner), remaining, waiters }
}

/// Whether somebody in line still shows itself.
async fn is_waited_for(deal: &mut Deal<'_>, key: &str, sight: &Sight) -> Result<bool, Trouble> {
    let is_long = sight.waiters > LOOKED_AT as usize;
    Ok(is_long || !line(&mut deal.call, key, LOOKED_AT - 1).await?.is_empty())
}
