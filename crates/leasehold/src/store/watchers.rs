//! Who in this process waits for a value to change, for stores that are told of changes.

use std::collections::HashMap;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::cells::store::Key;
use crate::sync::{Arc, Mutex, lock};

#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// By what a store calls it.
    watched: Mutex<HashMap<String, Arc<Notify>>>,
}

/// One who watches a value; forgotten when the last of them goes.
pub(crate) struct Watch<'a> {
    watchers: &'a Watchers,
    key: String,
    bell: Arc<Notify>,
}

impl Watchers {
    pub(crate) fn watch(&self, key: &Key) -> Watch<'_> {
        let key = key.to_string();
        let bell = lock(&self.watched).entry(key.clone()).or_default().clone();
        Watch { watchers: self, key, bell }
    }

    /// Has everybody look who watches this.
    pub(crate) fn ring(&self, key: &str) {
        let bell = lock(&self.watched).get(key).cloned();
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }

    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn ring_all(&self) {
        let bells: Vec<Arc<Notify>> = lock(&self.watched).values().cloned().collect();
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
        let mut watched = lock(&self.watchers.watched);
        // Ours and the table's: nobody else has it, and nobody gets it under this lock.
        if Arc::strong_count(&self.bell) == 2 {
            watched.remove(&self.key);
        }
    }
}
