//! A table whose entries may expire.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::clock::Deadline;

/// Entries by key. An expired entry stays until [`expire`](Expiring::expire).
pub(super) struct Expiring<K, V> {
    entries: BTreeMap<K, (V, Option<Deadline>)>,
    /// Exactly the entries that expire, sorted by time.
    ends: BTreeSet<(Deadline, K)>,
}

impl<K: Ord + Clone, V> Expiring<K, V> {
    pub(super) fn expire(&mut self, now: Deadline) {
        while let Some((ends, _)) = self.ends.first()
            && *ends <= now
            && let Some((_, key)) = self.ends.pop_first()
        {
            self.entries.remove(&key);
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<(&V, Option<Deadline>)> {
        self.entries.get(key).map(|(value, ends)| (value, *ends))
    }

    /// Sets a value and its expiry, or removes both.
    pub(super) fn set(&mut self, key: &K, value: Option<V>, ends: Option<Deadline>) {
        if let Some((_, Some(before))) = self.entries.remove(key) {
            self.ends.remove(&(before, key.clone()));
        }
        if let Some(value) = value {
            self.ends.extend(ends.map(|ends| (ends, key.clone())));
            self.entries.insert(key.clone(), (value, ends));
        }
    }
}

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Expiring { entries: BTreeMap::new(), ends: BTreeSet::new() }
    }
}

/// Omits the values, which belong to the users.
impl<K: fmt::Debug, V> fmt::Debug for Expiring<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiring").field("ends", &self.ends).finish_non_exhaustive()
    }
}
