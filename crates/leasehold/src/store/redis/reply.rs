//! What the scripts answer, in our own words.

use std::time::Duration;

use redis::Value;

use crate::claim::{Adopted, Busy, ENDLESS, Holder, Permits, Share, Ticket, Waiter, age};
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::token::{Owner, Token};

/// The label in place of a waiter whose entry another program has written or damaged.
const UNREADABLE: &str = "unreadable queue data; a forced release repairs it";

/// An answer of a script: a word, and what belongs to it.
#[derive(Debug)]
pub(in crate::store) struct Reply(Vec<Value>);

impl Reply {
    pub(in crate::store) fn new(value: Value) -> Result<Self> {
        match value {
            Value::Array(values) if !values.is_empty() => Ok(Reply(values)),
            // What most requests come to is said in as few bytes as it takes.
            Value::BulkString(text) if text.first() == Some(&b'q') => {
                let last = Value::BulkString(text[1..].to_vec());
                Ok(Reply(vec![Value::SimpleString("queued".to_owned()), last]))
            }
            Value::BulkString(_) | Value::Int(1) => Ok(Reply(vec![value])),
            _ => Err(odd()),
        }
    }

    pub(in crate::store) fn word(&self) -> String {
        self.text(0)
    }

    /// The fence of a plain grant.
    pub(in crate::store) fn plain(&self) -> Option<Result<Fence>> {
        match self.0.as_slice() {
            [Value::BulkString(_)] => Some(self.fence(0)),
            _ => None,
        }
    }

    /// Whether it is the short form of yes.
    pub(in crate::store) fn is_yes(&self) -> bool {
        matches!(self.0.as_slice(), [Value::Int(1)])
    }

    /// Bytes that are no text are shown as such: they are another library's.
    pub(in crate::store) fn text(&self, at: usize) -> String {
        self.0.get(at).map(text).unwrap_or_default()
    }

    pub(in crate::store) fn integer(&self, at: usize) -> i64 {
        match self.0.get(at) {
            Some(Value::Int(n)) => *n,
            Some(value) => text(value).parse().unwrap_or(0),
            None => 0,
        }
    }

    pub(in crate::store) fn fence(&self, at: usize) -> Result<Fence> {
        fence_read(&self.text(at)).ok_or_else(|| self.unexpected())
    }

    /// `queued last look`: when to look again, if that is earlier than of itself.
    pub(in crate::store) fn look(&self) -> Option<Duration> {
        self.0.get(2)?;
        Some(Duration::from_millis(u64::try_from(self.integer(2)).unwrap_or(1)))
    }

    pub(in crate::store) fn fences(&self, at: usize) -> u16 {
        u16::try_from(self.integer(at)).unwrap_or(1).max(1)
    }

    pub(in crate::store) fn list(&self, at: usize) -> &[Value] {
        match self.0.get(at) {
            Some(Value::Array(values)) => values,
            _ => &[],
        }
    }

    /// `busy value left waiters`
    pub(in crate::store) fn busy(&self) -> Busy {
        busy(&self.text(1), self.integer(2), usize::try_from(self.integer(3)).unwrap_or(0))
    }

    /// `adopted value | ends value left | nothing`
    pub(in crate::store) fn adopted(&self) -> Result<Adopted> {
        let holder = || owner(&self.text(1), false);
        match self.word().as_str() {
            "adopted" => Ok(Adopted::Adopted { holder: holder() }),
            "ends" => {
                let left_ms = u64::try_from(self.integer(2)).unwrap_or(0);
                Ok(Adopted::Ends { holder: holder(), remaining: Duration::from_millis(left_ms) })
            }
            "nothing" => Ok(Adopted::NotHeld),
            _ => Err(self.unexpected()),
        }
    }

    /// `lost taken | lost deleted`
    pub(in crate::store) fn loss(&self) -> Loss {
        if self.text(1) == "taken" { Loss::Taken } else { Loss::Deleted }
    }

    /// Answers that mean the same wherever they come from, and what nobody expects.
    pub(in crate::store) fn unexpected(&self) -> Error {
        match self.word().as_str() {
            "limit" => limit(),
            "foreign" => foreign(&self.text(1), &self.text(2)),
            _ => odd(),
        }
    }
}

pub(in crate::store) fn limit() -> Error {
    Error::Refused { store: "redis", why: "the fence is at its limit of 2^53 - 1".to_owned() }
}

/// A key that is no lock, or a private key of locks (these begin with a brace) that another program has overwritten.
pub(in crate::store) fn foreign(key: &str, kind: &str) -> Error {
    let key_shown = key.escape_debug();
    let why = match key.starts_with('{') {
        true => format!(
            "another program has overwritten the key `{key_shown}`, which is of type {kind} now; force-release the lock to repair it"
        ),
        false => format!(
            "the key `{key_shown}` is of type {kind}, which is no lock; use another name or prefix, or remove it"
        ),
    };
    Error::Refused { store: "redis", why }
}

/// Who is in the way: a value with what is left of it in ms, below zero where it has no end; nobody, where it is empty.
pub(in crate::store) fn busy(value: &str, left_ms: i64, waiters: usize) -> Busy {
    let held = !value.is_empty();
    Busy {
        holder: held.then(|| owner(value, left_ms < 0)),
        remaining: u64::try_from(left_ms).ok().filter(|_| held).map(Duration::from_millis),
        waiters,
    }
}

/// A request that the server executed only after its client had given up.
pub(super) fn too_late(timeout: Duration) -> Error {
    let why = format!(
        "requests take longer than {} ms to reach it, or its clock is being set; raise `timeout` in the store URL",
        timeout.as_millis()
    );
    Error::Refused { store: "redis", why }
}

/// An answer that is none of a script's: what was executed is unknown. It is not shown, for it may be long, and have somebody's
/// token in it.
pub(in crate::store) fn odd() -> Error {
    Error::Unreachable { store: "redis", why: "its answer makes no sense".to_owned() }
}

pub(in crate::store) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(n) => n.to_string(),
        Value::Okay => "OK".to_owned(),
        _ => String::new(),
    }
}

/// Who a value belongs to, for people.
fn owner(value: &str, is_endless: bool) -> Owner {
    parsed(value).map_or_else(|| somebody_else(is_endless), |(owner, _)| owner)
}

/// One whose key does not end by itself is never free unless somebody sees to it.
fn somebody_else(is_endless: bool) -> Owner {
    let label = if is_endless { ENDLESS } else { "another library" };
    Owner::new(label).unwrap_or_else(|_| Owner::this_process())
}

/// `token#fence…` by lines of which the first counts.
fn parsed(value: &str) -> Option<(Owner, Fence)> {
    let (token, fence) = value.lines().next()?.rsplit_once('#')?;
    let fence: String = fence.chars().take_while(char::is_ascii_hexdigit).collect();
    Some((Token::parse(token).ok()?.owner(), fence_read(&fence)?))
}

/// Fences are hexadecimal wherever they are text.
pub(in crate::store) fn fence_read(text: &str) -> Option<Fence> {
    Fence::new(u64::from_str_radix(text, 16).ok()?).ok()
}

/// Empty for a ticket without one.
pub(in crate::store) fn fence_text(fence: Option<Fence>) -> String {
    fence.map_or_else(String::new, |fence| format!("{:x}", fence.get()))
}

pub(in crate::store) fn share_text(share: Share) -> String {
    match share {
        Share::Exclusive => "x".to_owned(),
        Share::Shared => "r".to_owned(),
        Share::Permits(permits) => {
            let barging = if permits.is_barging() { "b" } else { "" };
            format!("p{}/{}{barging}", permits.take(), permits.limit())
        }
    }
}

/// What stands in the key for a share of one name; none for what stands there in another way, or is not known.
pub(super) fn share_held(ticket: &Ticket) -> Option<String> {
    let (_, fence) = ticket.names.only().zip(ticket.fence)?;
    let is_share = ticket.share != Share::Exclusive;
    is_share.then(|| format!("{}:{}#{:x}", share_text(ticket.share), ticket.token.expose(), fence.get()))
}

fn share_read(text: &str) -> Share {
    let permits = || {
        let (take, limit) = text.strip_prefix('p')?.split_once('/')?;
        let permits = Permits::new(take.parse().ok()?, limit.trim_end_matches('b').parse().ok()?).ok()?;
        Some(Share::Permits(if limit.ends_with('b') { permits.barging() } else { permits }))
    };
    match text {
        "r" => Share::Shared,
        _ => permits().unwrap_or(Share::Exclusive),
    }
}

/// `{VALUE or member, left, …}`
pub(in crate::store) fn holders(list: &[Value]) -> Vec<Holder> {
    let mut holders: Vec<Holder> = list
        .chunks_exact(2)
        .map(|pair| {
            let (share, value) = member(&text(&pair[0]));
            let known = parsed(&value);
            let left: i64 = text(&pair[1]).parse().unwrap_or(0);
            Holder {
                owner: owner(&value, left < 0),
                share,
                fence: known.map(|(_, fence)| fence),
                remaining: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
                nodes: None,
                held_for: None,
            }
        })
        .collect();
    holders.sort_by_key(|holder| holder.fence);
    holders
}

/// Whether it is one of several who hold a name together.
pub(in crate::store) fn is_member(text: &str) -> bool {
    let (share, value) = member(text);
    share != Share::Exclusive && parsed(&value).is_some()
}

/// A member of a set of holders, or the value of one alone.
fn member(text: &str) -> (Share, String) {
    let is_share = |share: &str| share == "r" || share_read(share) != Share::Exclusive;
    match text.split_once(':') {
        Some((share, value)) if is_share(share) => (share_read(share), value.to_owned()),
        _ => (Share::Exclusive, text.to_owned()),
    }
}

/// `{token, share, …}`; the share is `?` for queue data that a script cannot parse.
pub(in crate::store) fn waiters(list: &[Value]) -> Vec<Waiter> {
    list.chunks_exact(2)
        .map(|pair| {
            let (token, share) = (Token::parse(&text(&pair[0])), text(&pair[1]));
            let unknown = || match share.as_str() {
                "?" => Owner::new(UNREADABLE).unwrap_or_else(|_| Owner::this_process()),
                _ => somebody_else(false),
            };
            let owner = token.map_or_else(|_| unknown(), |token| token.owner());
            Waiter { owner, share: share_read(&share), waiting_for: None }
        })
        .collect()
}

/// Says since when each holds or waits: fences and arrivals follow the server's clock. `arrivals` has one for each waiter.
pub(in crate::store) fn date(
    holders: &mut [Holder],
    waiters: &mut [Waiter],
    now_us: u64,
    arrivals: impl IntoIterator<Item = u64>,
) {
    for holder in holders {
        holder.held_for = holder.fence.and_then(|fence| age(fence.get(), now_us));
    }
    for (waiter, arrival) in waiters.iter_mut().zip(arrivals) {
        waiter.waiting_for = age(arrival, now_us);
    }
}

/// A number that is not negative; 0 for anything else.
pub(in crate::store) fn number(value: &Value) -> u64 {
    text(value).parse().unwrap_or(0)
}
