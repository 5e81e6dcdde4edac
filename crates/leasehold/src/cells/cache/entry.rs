//! What is kept of a key: the value, and behind it what it takes to judge it. All times are the store's.

use std::time::Duration;

use super::place::Place;
use crate::cells::store::Kept;
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::ttl::Ttl;

/// How every entry ends: by this it is told from what other programs write.
const MAGIC: &[u8; 4] = b"LHc1";

/// Five numbers, the length of the key, what it is, and the end.
const TRAILER: usize = 5 * 8 + 4 + 1 + MAGIC.len();

/// Set where somebody has begun to load.
const LOADING: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// No value: only the mark of whoever loads one.
    Nothing = 0,
    Value = 1,
    /// It is known that there is none.
    Absent = 2,
}

/// What stands behind a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) what: What,
    /// Somebody has begun to load: whoever has this fence.
    pub(super) is_loading: bool,
    pub(super) fence: Fence,
    /// For how long it was written.
    pub(super) kept: Duration,
    /// For how much of that, at the end, its value does not count any more: a mark may outlive the value it was put at.
    pub(super) linger: Duration,
    /// For how much of what is before that it is stale.
    pub(super) stale: Duration,
    /// How long it took to load.
    pub(super) load_time: Duration,
}

impl Entry {
    /// `value`, the key where the name does not say it, five numbers, the key's length, what it is, `LHc1`.
    pub(super) fn encode(&self, value: &[u8], place: &Place) -> Vec<u8> {
        let mut raw = Vec::with_capacity(value.len() + place.key.len() + TRAILER);
        raw.extend_from_slice(value);
        raw.extend_from_slice(&place.key);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let load_us = u64::try_from(self.load_time.as_micros()).unwrap_or(u64::MAX);
        for number in [ms(self.kept), ms(self.linger), ms(self.stale), load_us, self.fence.get()] {
            raw.extend_from_slice(&number.to_be_bytes());
        }
        raw.extend_from_slice(&u32::try_from(place.key.len()).unwrap_or(u32::MAX).to_be_bytes());
        raw.push(self.what as u8 | if self.is_loading { LOADING } else { 0 });
        raw.extend_from_slice(MAGIC);
        raw
    }

    /// And how long the value is; nothing where these bytes are no entry. The key is to be looked for before that.
    fn decode(raw: &[u8]) -> Option<(Self, usize, usize)> {
        let at = raw.len().checked_sub(TRAILER)?;
        let (before, trailer) = raw.split_at(at);
        let number = |i: usize| trailer[8 * i..8 * (i + 1)].try_into().map(u64::from_be_bytes).ok();
        let ms = |i| number(i).map(Duration::from_millis);
        let key = usize::try_from(u32::from_be_bytes(trailer[40..44].try_into().ok()?)).ok()?;
        if &trailer[45..] != MAGIC {
            return None;
        }
        let entry = Entry {
            what: [What::Nothing, What::Value, What::Absent]
                .into_iter()
                .find(|what| *what as u8 == trailer[44] & !LOADING)?,
            is_loading: trailer[44] & LOADING != 0,
            kept: ms(0)?,
            linger: ms(1)?,
            stale: ms(2)?,
            load_time: Duration::from_micros(number(3)?),
            fence: Fence::new(number(4)?).ok()?,
        };
        Some((entry, before.len().checked_sub(key)?, before.len()))
    }
}

/// One look at a key: what was there, and how much of it was left then.
pub(super) struct Look {
    /// As it is kept, to be compared with.
    pub(super) raw: Option<Vec<u8>>,
    found: Option<Found>,
    /// When it was asked for, on this client's clock.
    pub(super) asked: Deadline,
}

#[derive(Clone, Copy)]
struct Found {
    entry: Entry,
    value_len: usize,
    remaining: Duration,
}

impl Look {
    pub(super) fn new(kept: Option<Kept>, place: &Place, asked: Deadline) -> Result<Self> {
        let Some(Kept { value: raw, remaining }) = kept else {
            return Ok(Look { raw: None, found: None, asked });
        };
        let Some((entry, value_len, key_end)) = Entry::decode(&raw) else {
            let why = "something else is kept under its name; remove that, or choose another name";
            return Err(Error::invalid("cached value", place.cell.to_string(), why));
        };
        let remaining = remaining.unwrap_or(Duration::MAX);
        // Of another key with the same hash: it is as if there were nothing, and it will be overwritten.
        let is_ours = raw[value_len..key_end] == place.key[..];
        let found = is_ours.then_some(Found { entry, value_len, remaining });
        Ok(Look { raw: Some(raw), found, asked })
    }

    /// What there is to say of a value that has just been written so.
    pub(super) fn written(raw: Vec<u8>, entry: Entry, value_len: usize, asked: Deadline) -> Self {
        let found = Found { entry, value_len, remaining: entry.kept };
        Look { raw: Some(raw), found: Some(found), asked }
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        self.found.map(|found| found.entry.fence)
    }

    pub(super) fn what(&self) -> What {
        self.found.map_or(What::Nothing, |found| found.entry.what)
    }

    /// What was left until the value goes.
    pub(super) fn value_left(&self) -> Duration {
        self.found.map_or(Duration::ZERO, |found| match found.entry.what {
            What::Nothing => Duration::ZERO,
            What::Value | What::Absent => found.remaining.saturating_sub(found.entry.linger),
        })
    }

    /// What was left until it is stale.
    pub(super) fn fresh_left(&self) -> Duration {
        self.value_left().saturating_sub(self.found.map_or(Duration::ZERO, |found| found.entry.stale))
    }

    pub(super) fn is_fresh(&self) -> bool {
        !self.fresh_left().is_zero()
    }

    /// Whether it is there, and was fresh at most so long ago.
    pub(super) fn is_usable(&self, stale_for: Duration) -> bool {
        let Some(found) = self.found else { return false };
        let left = self.value_left();
        !left.is_zero() && found.entry.stale.saturating_sub(left) <= stale_for
    }

    /// Whether somebody has begun to load within this time.
    pub(super) fn is_loading_since(&self, time: Duration) -> bool {
        self.found.is_some_and(|found| {
            found.entry.is_loading && found.entry.kept.saturating_sub(found.remaining) < time
        })
    }

    /// Whether it is to be loaded before its time, by the number that was drawn: the nearer the end and the longer a load
    /// takes, the likelier. With a chance of `exp(-left / (load_time × beta))` (Vattani, Chierichetti and Lowenstein,
    /// "Optimal Probabilistic Cache Stampede Prevention", 2015).
    pub(super) fn is_due_early(&self, beta: f64, draw: impl FnOnce() -> f64) -> bool {
        /// Below this share of a whole, a draw of 53 bits is never.
        const NEVER: f64 = 36.8;
        let Some(found) = self.found else { return false };
        let reach = found.entry.load_time.as_secs_f64() * beta;
        let left = self.fresh_left().as_secs_f64();
        reach > 0.0 && left < reach * NEVER && -reach * draw().ln() >= left
    }

    /// The bytes of the value.
    pub(super) fn value(&self) -> &[u8] {
        match (&self.raw, self.found) {
            (Some(raw), Some(found)) => &raw[..found.value_len],
            _ => &[],
        }
    }

    /// The same, without a copy.
    pub(super) fn into_value(self) -> Vec<u8> {
        let (mut raw, len) = (self.raw.unwrap_or_default(), self.found.map_or(0, |found| found.value_len));
        raw.truncate(len);
        raw
    }

    /// The mark of whoever begins to load now, at what is there; and for how long it is to be kept.
    pub(super) fn marked(
        &self,
        place: &Place,
        fence: Fence,
        now: Deadline,
        load_within: Ttl,
    ) -> (Vec<u8>, Ttl) {
        let left = whole_ms(self.value_left().saturating_sub(now.since(self.asked)));
        let kept = load_within.as_duration().max(left);
        let found = self.found.filter(|_| !left.is_zero()).map(|found| found.entry);
        let blank = Entry {
            what: What::Nothing,
            is_loading: true,
            fence,
            kept,
            linger: kept,
            stale: Duration::ZERO,
            load_time: Duration::ZERO,
        };
        let (entry, value) = match found {
            Some(entry) => {
                (Entry { is_loading: true, fence, kept, linger: kept - left, ..entry }, self.value())
            }
            None => (blank, &[][..]),
        };
        (entry.encode(value, place), Ttl::from_ms(kept.as_millis() as u64))
    }

    /// What is put back by one who has begun to load and gives up: the value that was there, without a mark, for what is left
    /// of it; nothing where none is left.
    pub(super) fn unmarked(&self, place: &Place, fence: Fence, now: Deadline) -> Option<(Vec<u8>, Ttl)> {
        let left = whole_ms(self.value_left().saturating_sub(now.since(self.asked)));
        let found = self.found.filter(|_| left >= Ttl::MIN.as_duration())?;
        let entry = Entry { is_loading: false, fence, kept: left, linger: Duration::ZERO, ..found.entry };
        Some((entry.encode(self.value(), place), Ttl::from_ms(left.as_millis() as u64)))
    }
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(Ttl::MAX.as_ms()))
}

/// Values are the user's, and may be secret.
impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look").field("entry", &self.found.map(|found| found.entry)).finish_non_exhaustive()
    }
}
