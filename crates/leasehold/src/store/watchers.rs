//! Who in this process waits for a value to change, for stores that are told of changes.

use std::collections::HashMap;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::sync::{Arc, Mutex, lock};

#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// By what a store calls it.
    watched: Mutex<HashMap<String, Watched>>,
}

/// A value that somebody watches.
#[derive(Debug, Default)]
struct Watched {
    bell: Arc<Notify>,
    /// How many do; never 0 in the table.
    count: usize,
}

/// One who watches a value; forgotten when the last of them goes.
pub(crate) struct Watch<'a> {
    watchers: &'a Watchers,
    key: String,
    bell: Arc<Notify>,
}

impl Watchers {
    pub(crate) fn watch(&self, key: String) -> Watch<'_> {
        let bell = {
            let mut watched = lock(&self.watched);
            let watched = watched.entry(key.clone()).or_default();
            watched.count += 1;
            watched.bell.clone()
        };
        Watch { watchers: self, key, bell }
    }

    /// Has everybody look who watches this.
    pub(crate) fn ring(&self, key: &str) {
        let bell = lock(&self.watched).get(key).map(|watched| watched.bell.clone());
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }

    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn ring_all(&self) {
        let bells: Vec<Arc<Notify>> =
            lock(&self.watched).values().map(|watched| watched.bell.clone()).collect();
        bells.iter().for_each(|bell| bell.notify_waiters());
    }
}

impl Watch<'_> {
    /// Rings at changes from the moment on at which it is enabled: whoever looks first enables it.
    pub(crate) fn rung(&self) -> Notified<'_> {
        self.bell.notified()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut table = lock(&self.watchers.watched);
        if let Some(watched) = table.get_mut(&self.key) {
            watched.count -= 1;
            if watched.count == 0 {
                table.remove(&self.key);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_forgotten_when_the_last_who_watches_it_goes() {
        let watchers = Watchers::default();
        let (first, second) = (watchers.watch("cell:x".to_owned()), watchers.watch("cell:x".to_owned()));
        // As one who rings has it for a moment, and one who has just gone.
        let rings = first.bell.clone();
        drop(first);
        assert_eq!(lock(&watchers.watched).len(), 1);
        drop(second);
        assert_eq!(lock(&watchers.watched).len(), 0);
        drop(rings);
    }
}
