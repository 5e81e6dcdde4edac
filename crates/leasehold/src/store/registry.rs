//! Values that tasks of one process share by key, each kept for as long as a task uses it.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;

use crate::sync::{Arc, Mutex, lock};

/// Shared values by key. Clones are the same registry.
pub(crate) struct Registry<K, V> {
    entries: Arc<Mutex<HashMap<K, Counted<V>>>>,
}

struct Counted<V> {
    value: Arc<V>,
    /// The number of [`Entry`] guards, never 0. The count of the `Arc` does not serve: a clone from
    /// [`Registry::get`] that outlives the last guard would keep the value in the table.
    count: usize,
}

/// A guard of one shared value. The registry forgets the value when the last guard drops.
pub(crate) struct Entry<K: Eq + Hash, V> {
    registry: Registry<K, V>,
    key: K,
    value: Arc<V>,
}

impl<K: Eq + Hash + Clone, V: Default> Registry<K, V> {
    /// Returns a guard of the value with this key, and creates the value if it does not exist.
    pub(crate) fn join(&self, key: K) -> Entry<K, V> {
        let value = {
            let mut entries = lock(&self.entries);
            let counted = entries
                .entry(key.clone())
                .or_insert_with(|| Counted { value: Arc::new(V::default()), count: 0 });
            counted.count += 1;
            counted.value.clone()
        };
        Entry { registry: self.clone(), key, value }
    }
}

impl<K: Eq + Hash, V> Registry<K, V> {
    /// Returns the value with this key, if a guard of it exists.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        lock(&self.entries).get(key).map(|counted| counted.value.clone())
    }

    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn all(&self) -> Vec<Arc<V>> {
        lock(&self.entries).values().map(|counted| counted.value.clone()).collect()
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn len(&self) -> usize {
        lock(&self.entries).len()
    }
}

impl<K: Eq + Hash, V> Deref for Entry<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Eq + Hash + Clone, V: Default> Clone for Entry<K, V> {
    fn clone(&self) -> Self {
        self.registry.join(self.key.clone())
    }
}

impl<K: Eq + Hash, V> Drop for Entry<K, V> {
    fn drop(&mut self) {
        // Dropped after the lock, because dropping a value may run foreign code.
        let _forgotten;
        let mut entries = lock(&self.registry.entries);
        if let Some(counted) = entries.get_mut(&self.key) {
            counted.count -= 1;
            if counted.count == 0 {
                _forgotten = entries.remove(&self.key);
            }
        }
    }
}

impl<K, V> Clone for Registry<K, V> {
    fn clone(&self) -> Self {
        Registry { entries: self.entries.clone() }
    }
}

impl<K, V> Default for Registry<K, V> {
    fn default() -> Self {
        Registry { entries: Arc::default() }
    }
}

impl<K, V> fmt::Debug for Registry<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
