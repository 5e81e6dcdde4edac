//! The stored bytes of a key: the value and a trailer, with times by the store's clock.

use std::time::Duration;

use super::key::CacheKey;
use crate::cells::store::Kept;
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::ttl::Ttl;

/// The end of every entry, which tells it from the bytes of other programs.
const MAGIC: &[u8; 4] = b"LHc1";

/// Five numbers, the length of the key, the content with its flag, and the magic bytes.
const TRAILER: usize = 5 * 8 + 4 + 1 + MAGIC.len();

/// The flag of a marker.
const LOADING: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A marker without a value.
    Nothing = 0,
    Value = 1,
    /// A loader has reported that there is no value.
    Absent = 2,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Lifetime {
    /// The fresh and the stale time together.
    pub(super) kept: Ttl,
    pub(super) stale: Duration,
}

/// The numbers in a trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) content: Content,
    /// Set in a marker: the loader with this fence has begun.
    is_loading: bool,
    fence: Fence,
    /// The TTL that it was written with.
    kept: Duration,
    /// The end of `kept`, in which only the marker counts: it may outlive the value beside it.
    linger: Duration,
    /// The part of `kept` before `linger`, in which the value is stale.
    stale: Duration,
    load_time: Duration,
}

impl Entry {
    pub(super) fn loaded(content: Content, fence: Fence, lifetime: Lifetime, load_time: Duration) -> Self {
        let Lifetime { kept, stale } = lifetime;
        let (kept, linger) = (kept.as_duration(), Duration::ZERO);
        Entry { content, is_loading: false, fence, kept, linger, stale, load_time }
    }

    /// Encodes the value, the key if the name does not contain it, and the trailer.
    pub(super) fn encode(&self, value: &[u8], key: &CacheKey) -> Vec<u8> {
        let mut raw = Vec::with_capacity(value.len() + key.bytes.len() + TRAILER);
        raw.extend_from_slice(value);
        raw.extend_from_slice(&key.bytes);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let load_us = u64::try_from(self.load_time.as_micros()).unwrap_or(u64::MAX);
        for number in [ms(self.kept), ms(self.linger), ms(self.stale), load_us, self.fence.get()] {
            raw.extend_from_slice(&number.to_be_bytes());
        }
        raw.extend_from_slice(&u32::try_from(key.bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        raw.push(self.content as u8 | if self.is_loading { LOADING } else { 0 });
        raw.extend_from_slice(MAGIC);
        raw
    }

    /// Returns the entry, and the ends of the value and the key; `None` if this is no entry.
    fn decode(raw: &[u8]) -> Option<(Self, usize, usize)> {
        let key_end = raw.len().checked_sub(TRAILER)?;
        let trailer = &raw[key_end..];
        let number = |i: usize| trailer[8 * i..8 * (i + 1)].try_into().map(u64::from_be_bytes).ok();
        let ms = |i| number(i).map(Duration::from_millis);
        let key_len = usize::try_from(u32::from_be_bytes(trailer[40..44].try_into().ok()?)).ok()?;
        if &trailer[45..] != MAGIC {
            return None;
        }
        let entry = Entry {
            content: [Content::Nothing, Content::Value, Content::Absent]
                .into_iter()
                .find(|content| *content as u8 == trailer[44] & !LOADING)?,
            is_loading: trailer[44] & LOADING != 0,
            kept: ms(0)?,
            linger: ms(1)?,
            stale: ms(2)?,
            load_time: Duration::from_micros(number(3)?),
            fence: Fence::new(number(4)?).ok()?,
        };
        Some((entry, key_end.checked_sub(key_len)?, key_end))
    }
}

/// The answer to one read of a key.
pub(super) struct Snapshot {
    /// The stored bytes, for comparison.
    pub(super) raw: Option<Vec<u8>>,
    found: Option<Found>,
    /// The time at which the read was sent, by this client's clock.
    asked: Deadline,
}

#[derive(Clone, Copy)]
struct Found {
    entry: Entry,
    value_len: usize,
    remaining: Duration,
}

impl Snapshot {
    pub(super) fn new(kept: Option<Kept>, key: &CacheKey, asked: Deadline) -> Result<Self> {
        let Some(Kept { value: raw, remaining }) = kept else {
            return Ok(Snapshot { raw: None, found: None, asked });
        };
        let Some((entry, value_len, key_end)) = Entry::decode(&raw) else {
            let why = "something else is kept under its name; remove that, or choose another name";
            return Err(Error::invalid("cached value", key.cell.to_string(), why));
        };
        let remaining = remaining.unwrap_or(Duration::MAX);
        // The value of another key with the same hash does not count, and is overwritten.
        let is_ours = raw[value_len..key_end] == key.bytes[..];
        let found = is_ours.then_some(Found { entry, value_len, remaining });
        Ok(Snapshot { raw: Some(raw), found, asked })
    }

    pub(super) fn written(raw: Vec<u8>, entry: Entry, value_len: usize, asked: Deadline) -> Self {
        let found = Found { entry, value_len, remaining: entry.kept };
        Snapshot { raw: Some(raw), found: Some(found), asked }
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        self.found.map(|found| found.entry.fence)
    }

    pub(super) fn content(&self) -> Content {
        self.found.map_or(Content::Nothing, |found| found.entry.content)
    }

    /// The time for which the value was still kept.
    fn value_left(&self) -> Duration {
        self.found.map_or(Duration::ZERO, |found| match found.entry.content {
            Content::Nothing => Duration::ZERO,
            Content::Value | Content::Absent => found.remaining.saturating_sub(found.entry.linger),
        })
    }

    /// The rest of that time, in whole milliseconds.
    fn value_left_at(&self, now: Deadline) -> Duration {
        let left = self.value_left().saturating_sub(now.since(self.asked));
        Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).min(Ttl::MAX.as_ms()))
    }

    /// The time for which the value was still fresh.
    fn fresh_left(&self) -> Duration {
        self.value_left().saturating_sub(self.found.map_or(Duration::ZERO, |found| found.entry.stale))
    }

    pub(super) fn is_fresh(&self) -> bool {
        !self.fresh_left().is_zero()
    }

    /// Returns whether there is a value, or its absence, that has been stale for at most this time.
    pub(super) fn is_usable(&self, stale_for: Duration) -> bool {
        let Some(found) = self.found else { return false };
        let left = self.value_left();
        !left.is_zero() && found.entry.stale.saturating_sub(left) <= stale_for
    }

    /// Returns whether a loader has begun within this time.
    pub(super) fn is_loading_since(&self, time: Duration) -> bool {
        self.found.is_some_and(|found| {
            found.entry.is_loading && found.entry.kept.saturating_sub(found.remaining) < time
        })
    }

    /// Decides whether to load the value early, with a chance of `exp(-left / (load_time × beta))`
    /// (Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention",
    /// 2015). `draw` returns a random number above 0 and at most 1.
    pub(super) fn is_due_early(&self, beta: f64, draw: impl FnOnce() -> f64) -> bool {
        /// The logarithm of a draw of 53 bits is never lower: without a chance, nothing is drawn.
        const NEVER: f64 = 36.8;
        let Some(found) = self.found else { return false };
        let reach = found.entry.load_time.as_secs_f64() * beta;
        let left = self.fresh_left().as_secs_f64();
        reach > 0.0 && left < reach * NEVER && -reach * draw().ln() >= left
    }

    pub(super) fn value(&self) -> &[u8] {
        match (&self.raw, self.found) {
            (Some(raw), Some(found)) => &raw[..found.value_len],
            _ => &[],
        }
    }

    /// Returns the value, without a copy.
    pub(super) fn into_value(self) -> Vec<u8> {
        let (mut raw, len) = (self.raw.unwrap_or_default(), self.found.map_or(0, |found| found.value_len));
        raw.truncate(len);
        raw
    }

    /// Returns the marker of a loader that begins now, beside an unexpired value, and its TTL.
    pub(super) fn with_marker(
        &self,
        key: &CacheKey,
        fence: Fence,
        now: Deadline,
        load_within: Ttl,
    ) -> (Vec<u8>, Ttl) {
        let left = self.value_left_at(now);
        let kept = Ttl::from_ms((load_within.as_duration().max(left)).as_millis() as u64);
        let (entry, value) = match self.found {
            Some(found) if !left.is_zero() => (found.entry, self.value()),
            _ => {
                let lifetime = Lifetime { kept, stale: Duration::ZERO };
                (Entry::loaded(Content::Nothing, fence, lifetime, Duration::ZERO), &[][..])
            }
        };
        let linger = kept.as_duration() - left;
        let entry = Entry { is_loading: true, fence, kept: kept.as_duration(), linger, ..entry };
        (entry.encode(value, key), kept)
    }

    /// Returns the unexpired value without a marker, for a loader that gives up, with its time.
    pub(super) fn without_marker(
        &self,
        key: &CacheKey,
        fence: Fence,
        now: Deadline,
    ) -> Option<(Vec<u8>, Ttl)> {
        let kept = self.value_left_at(now);
        let found = self.found.filter(|_| kept >= Ttl::MIN.as_duration())?;
        let entry = Entry { is_loading: false, fence, kept, linger: Duration::ZERO, ..found.entry };
        Some((entry.encode(self.value(), key), Ttl::from_ms(kept.as_millis() as u64)))
    }
}

/// Shows no value, which may be secret.
impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("entry", &self.found.map(|found| found.entry))
            .finish_non_exhaustive()
    }
}

/// Snapshots that tests tell apart by a number.
#[cfg(test)]
impl Snapshot {
    pub(super) fn numbered(number: u64) -> Self {
        Snapshot { raw: None, found: None, asked: Deadline::from_ns(number) }
    }

    pub(super) fn number(&self) -> u64 {
        self.asked.as_ns()
    }
}
