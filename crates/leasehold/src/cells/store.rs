//! The `CellStore` trait: where values are kept that need no lock. The second trait of a store.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::cells::rate::{Limit, Taken};
use crate::clock::Deadline;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::ttl::Ttl;

/// Where values are kept.
///
/// The trait is the implementor's minimum: no method has a default.
///
/// # Contract
///
/// **Atomic.** Each call looks and acts in one step; a value that is to end gets its end in the step that writes it.
///
/// **Time.** Ends are counted by the store's own clock, never by a client's.
///
/// **Errors.** As of a [`Store`](crate::Store): [`Error::is_outcome_unknown`](crate::Error::is_outcome_unknown) says whether
/// the request may have been executed.
///
/// **Not idempotent.** A repeated [`add`](CellStore::add) adds twice, a repeated [`take`](CellStore::take) takes twice, and a repeated [`write`](CellStore::write) may find what
/// the first one wrote. Whoever repeats has to know.
///
/// **Fences.** With the value a store remembers the highest fence it was written under: for as long as there is a value, and
/// after that for as long as that [`Fenced`](When::Fenced) write said. Also a write on another condition makes a value, and
/// removes it; only [`Fenced`](When::Fenced) looks at the fence, and [`add`](CellStore::add) has nothing to do with it.
///
/// **Bounded.** Each call ends within the store's own operation time-out, a [`changed`](CellStore::changed) beyond its wait.
#[async_trait]
pub trait CellStore: Send + Sync + fmt::Debug {
    /// What is there now.
    async fn read(&self, key: &Key) -> Result<Option<Kept>>;

    /// Writes or removes a value, on a condition.
    async fn write(&self, key: &Key, write: &Write) -> Result<Written>;

    /// Adds to a number, which is 0 where there is none, and says what it comes to. Its end is set when it is made, and stays.
    /// Beyond what an `i64` holds, and where there is no number, it is refused and nothing changes.
    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64>;

    /// Looks, asks what is to be there, and writes that if nobody has written in between: one attempt, which may be overtaken.
    ///
    /// What is asked for may take its time, and may never answer: nothing is kept from others meanwhile, and nothing stays
    /// behind where the future is dropped.
    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed>;

    /// Runs a program of the user's in one step, where the store runs any; else [`Error::Unsupported`](crate::Error::Unsupported).
    /// All the keys are in one slot.
    async fn run(&self, source: &str, keys: &[ScriptKey], args: &[Vec<u8>]) -> Result<Answer>;

    /// Takes so much of a limit if it may be had now, by the limit's rule and the store's clock; what is refused uses nothing. What is
    /// kept of it ends by itself when it does not matter any more. The weight is one that [the limit takes](Limit::check).
    ///
    /// - It is kept under [`Limit::place`], and nowhere else. Each take is judged by its own maximum.
    /// - A clock that is set back lets nothing through, and keeps nobody out for longer than another period.
    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken>;

    /// Ends when the value is not this one any more, or may not be; and by then at the latest.
    ///
    /// Whoever writes through this trait is heard of at once. What other programs write, and what somebody wrote who died before
    /// it could say so, is found by looking, within seconds.
    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()>;
}

/// What is to be there, by what is there; `None` to leave it.
pub type Plan<'a> = dyn FnMut(Option<&[u8]>) -> Option<Put> + Send + 'a;

/// What a [`Plan`] says.
#[derive(Clone, PartialEq, Eq)]
pub struct Put {
    /// What; `None` removes it.
    pub value: Option<Vec<u8>>,
    /// For how long; `None` for good.
    pub ttl: Option<Ttl>,
}

impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Vec::len);
        f.debug_struct("Put").field("bytes", &bytes).field("ttl", &self.ttl).finish()
    }
}

/// What came of a [`change`](CellStore::change).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It was written, or removed.
    Written,
    /// As the plan wanted it, nothing was.
    Left,
    /// Somebody wrote in between, and nothing was changed.
    Overtaken,
}

/// A [`change`](CellStore::change) by comparison, for stores that have nothing better: the value has to be what it was.
///
/// # Cancel safety
/// Dropped before its end, it has happened or it has not; nothing stays behind.
pub async fn change_by_comparison(cells: &dyn CellStore, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
    let there = cells.read(key).await?.map(|kept| kept.value);
    let Some(Put { value, ttl }) = plan(there.as_deref()) else { return Ok(Changed::Left) };
    let write = Write { when: there.map_or(When::Absent, When::Is), value, ttl };
    Ok(match cells.write(key, &write).await? {
        Written::Written => Changed::Written,
        Written::Not | Written::Stale(_) => Changed::Overtaken,
    })
}

/// What a program of the user's answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// A whole number.
    Number(i64),
    /// Text, or anything else.
    Bytes(Vec<u8>),
    /// Several.
    List(Vec<Answer>),
}

/// Where a value is: two kinds of one name have nothing to do with each other.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    kind: Kind,
    name: Name,
}

/// A key that a program of the user's touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptKey {
    /// That of a value, wherever the store keeps it.
    Value(Key),
    /// This one, as it stands.
    Raw(Vec<u8>),
}

impl ScriptKey {
    /// What it is on the server, where the key of a value is what `of_value` says.
    pub(crate) fn bytes(&self, of_value: impl FnOnce(&Key) -> String) -> Vec<u8> {
        match self {
            ScriptKey::Value(key) => of_value(key).into_bytes(),
            ScriptKey::Raw(key) => key.clone(),
        }
    }
}

/// What a value is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// A value that users read and write.
    Cell,
    /// A number that is added to.
    Counter,
    /// Who has counted down.
    Latch,
    /// What was taken of a rate limit.
    Rate,
    /// A value that is loaded where there is none.
    Cached,
}

impl Key {
    /// The value of this kind and name.
    pub fn new(kind: Kind, name: Name) -> Self {
        Key { kind, name }
    }

    /// What it is for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The name.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

/// `cell:NAME`: how a store that keeps everything in one place tells them apart.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Cell => "cell",
            Kind::Counter => "counter",
            Kind::Latch => "latch",
            Kind::Rate => "rate",
            Kind::Cached => "cached",
        };
        write!(f, "{kind}:{}", self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// A value, as it is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its bytes.
    pub value: Vec<u8>,
    /// How long it is still there; `None` for one without an end.
    pub remaining: Option<Duration>,
}

/// Values are the user's, and may be secret.
impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("bytes", &self.value.len()).field("remaining", &self.remaining).finish()
    }
}

/// What is to be written.
#[derive(Clone, PartialEq, Eq)]
pub struct Write {
    /// On which condition.
    pub when: When,
    /// What; `None` removes it.
    pub value: Option<Vec<u8>>,
    /// For how long; `None` for good.
    pub ttl: Option<Ttl>,
}

impl Write {
    /// Removes the value, whatever it is.
    pub(crate) const REMOVE: Write = Write { when: When::Always, value: None, ttl: None };
}

/// A condition of a [`Write`].
#[derive(Clone, PartialEq, Eq)]
pub enum When {
    /// In any case.
    Always,
    /// If there is no value.
    Absent,
    /// If the value is this.
    Is(Vec<u8>),
    /// If nothing was written under a higher fence, as far as is remembered; the same fence may write again. In the same step
    /// this one is remembered.
    ///
    /// A holder may sleep through the end of its lease, and of the value, and wake to write. So a fence is remembered beyond
    /// the value that was written under it: whoever sleeps for longer than that is not found out.
    Fenced {
        /// That of whoever writes.
        fence: Fence,
        /// How long it is remembered when there is no value any more.
        kept_for: Ttl,
    },
}

impl When {
    /// Whether it holds for what is there, and for the highest fence that is remembered.
    pub fn judge(&self, there: Option<&[u8]>, seen: Option<Fence>) -> Written {
        let holds = match self {
            When::Always => true,
            When::Absent => there.is_none(),
            When::Is(value) => there == Some(value),
            When::Fenced { fence, .. } => match seen {
                Some(seen) if seen > *fence => return Written::Stale(seen),
                _ => true,
            },
        };
        if holds { Written::Written } else { Written::Not }
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Always => f.write_str("Always"),
            When::Absent => f.write_str("Absent"),
            When::Is(_) => f.write_str("Is(…)"),
            When::Fenced { fence, .. } => write!(f, "Fenced({fence})"),
        }
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Vec::len);
        f.debug_struct("Write")
            .field("when", &self.when)
            .field("bytes", &bytes)
            .field("ttl", &self.ttl)
            .finish()
    }
}

/// What came of a [`Write`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It was written, or removed.
    Written,
    /// The condition did not hold, and nothing changed.
    Not,
    /// Something was written under this fence, which is higher; nothing changed.
    Stale(Fence),
}
