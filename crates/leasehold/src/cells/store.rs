//! The `CellStore` trait: storage for values that need no lock. The second trait of a store.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::cells::rate::{Limit, Taken};
use crate::clock::Deadline;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::ttl::Ttl;

/// A store of values.
///
/// No method has a default, so an implementor writes all of them.
///
/// # Contract
///
/// **Atomic.** Each call reads and acts in one step. The write of a value sets its expiry.
///
/// **Time.** The store's own clock counts expiries, never a client's.
///
/// **Errors.** As for a [`Store`](crate::Store):
/// [`Error::is_outcome_unknown`](crate::Error::is_outcome_unknown) tells whether the request may
/// have been executed.
///
/// **Not idempotent.** A repeated [`add`](CellStore::add) adds twice, a repeated
/// [`take`](CellStore::take) takes twice, and a repeated [`write`](CellStore::write) may find what
/// the first one wrote. Only a caller that accepts this may repeat.
///
/// **Fences.** With a value, a store remembers the highest fence of its writes, and keeps it after
/// the value is gone for as long as that [`Fenced`](When::Fenced) write asked. Only
/// [`Fenced`](When::Fenced) reads the fence: other writes create and remove values without it, and
/// [`add`](CellStore::add) ignores it.
///
/// **Bounded.** Each call ends within the store's own operation time-out;
/// [`changed`](CellStore::changed) within that after its wait.
#[async_trait]
pub trait CellStore: Send + Sync + fmt::Debug {
    /// Returns the value, if there is one.
    async fn read(&self, key: &Key) -> Result<Option<Kept>>;

    /// Writes or removes a value, on a condition.
    async fn write(&self, key: &Key, write: &Write) -> Result<Written>;

    /// Adds to a number, and returns the sum. A missing number is 0; the expiry is set when it is
    /// created, and stays. A sum beyond an `i64`, and a value that is no number, are refused
    /// without a change.
    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64>;

    /// Reads the value, calls `plan`, and writes its result unless there was a write in between.
    ///
    /// `plan` may take long, or for ever, and blocks no client. A dropped future leaves nothing
    /// behind.
    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed>;

    /// Runs a script of the user in one step. A store that runs none fails with
    /// [`Error::Unsupported`](crate::Error::Unsupported). All keys are in one slot.
    async fn run(&self, source: &str, keys: &[ScriptKey], args: &[Vec<u8>]) -> Result<Answer>;

    /// Takes this weight if the limit allows it now, by the store's clock. The stored value expires
    /// when it has no effect any more. [`Limit::check`] has accepted the weight.
    ///
    /// - The value is kept under [`Limit::place`] only. Each take is judged by its own maximum.
    /// - A clock that is set back allows nothing, and refuses for at most another period.
    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken>;

    /// Returns when the value may differ from `from`, and at `until` at the latest.
    ///
    /// A write through this trait is noticed at once. Writes of other programs, and of a client
    /// that died before it could notify, are found by polling, within seconds.
    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()>;
}

/// Computes the new value from the stored one; `None` leaves that unchanged.
pub type Plan<'a> = dyn FnMut(Option<&[u8]>) -> Option<Put> + Send + 'a;

/// The result of a [`Plan`].
#[derive(Clone, PartialEq, Eq)]
pub struct Put {
    /// The value; `None` removes it.
    pub value: Option<Vec<u8>>,
    /// The time until it expires; `None` for never.
    pub ttl: Option<Ttl>,
}

impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Vec::len);
        f.debug_struct("Put").field("bytes", &bytes).field("ttl", &self.ttl).finish()
    }
}

/// The result of a [`change`](CellStore::change).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The value was written or removed.
    Written,
    /// The plan left the value unchanged.
    Left,
    /// There was a write in between, and nothing was changed.
    Overtaken,
}

/// Does a [`change`](CellStore::change) by comparison, for stores that have nothing better.
///
/// # Cancel safety
/// If dropped, the change may or may not have happened; nothing else is left behind.
pub async fn change_by_comparison(cells: &dyn CellStore, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
    let there = cells.read(key).await?.map(|kept| kept.value);
    let Some(Put { value, ttl }) = plan(there.as_deref()) else { return Ok(Changed::Left) };
    let write = Write { when: there.map_or(When::Absent, When::Is), value, ttl };
    Ok(match cells.write(key, &write).await? {
        Written::Written => Changed::Written,
        Written::Not | Written::Stale(_) => Changed::Overtaken,
    })
}

/// The answer of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// An integer.
    Number(i64),
    /// Text or other bytes.
    Bytes(Vec<u8>),
    /// A list of answers.
    List(Vec<Answer>),
}

/// The key of a value. Values of different kinds do not share names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    kind: Kind,
    name: Name,
}

/// A key that a script uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptKey {
    /// The key of a value, which the store maps to its own.
    Value(Key),
    /// A key of the server, unchanged.
    Raw(Vec<u8>),
}

impl ScriptKey {
    /// Returns the key on the server; `of_value` gives that of a value.
    pub(crate) fn bytes(&self, of_value: impl FnOnce(&Key) -> String) -> Vec<u8> {
        match self {
            ScriptKey::Value(key) => of_value(key).into_bytes(),
            ScriptKey::Raw(key) => key.clone(),
        }
    }
}

/// The use of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// A value that users read and write.
    Cell,
    /// A number that is added to.
    Counter,
    /// The callers that have counted down.
    Latch,
    /// The takes of a rate limit.
    Rate,
    /// A value of a cache.
    Cached,
}

impl Key {
    /// Builds the key of this kind and name.
    pub fn new(kind: Kind, name: Name) -> Self {
        Key { kind, name }
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the name.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

/// Shows `cell:NAME`, by which a store that keeps all kinds in one place tells them apart.
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

/// A stored value.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// The bytes.
    pub value: Vec<u8>,
    /// The time until it expires; `None` for never.
    pub remaining: Option<Duration>,
}

/// Shows no values, which may be secret.
impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("bytes", &self.value.len()).field("remaining", &self.remaining).finish()
    }
}

/// A write or a removal.
#[derive(Clone, PartialEq, Eq)]
pub struct Write {
    /// The condition.
    pub when: When,
    /// The value; `None` removes it.
    pub value: Option<Vec<u8>>,
    /// The time until it expires; `None` for never.
    pub ttl: Option<Ttl>,
}

impl Write {
    pub(crate) const REMOVE: Write = Write { when: When::Always, value: None, ttl: None };
}

/// A condition of a [`Write`].
#[derive(Clone, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// There is no value.
    Absent,
    /// The value is this.
    Is(Vec<u8>),
    /// There was no write under a higher fence, as far as the store remembers. The same fence may
    /// write again. The store remembers this one in the same step.
    ///
    /// A holder may be suspended past the end of its lease and of the value, and then write. So a
    /// fence is remembered beyond its value; a longer suspension is not detected.
    Fenced {
        /// The fence of the writer's lease.
        fence: Fence,
        /// The time for which the fence is remembered after the value is gone.
        kept_for: Ttl,
    },
}

impl When {
    /// Judges the condition by the stored value and the highest remembered fence.
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

/// The result of a [`Write`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The value was written or removed.
    Written,
    /// The condition did not hold, and nothing changed.
    Not,
    /// There was a write under this higher fence; nothing changed.
    Stale(Fence),
}
