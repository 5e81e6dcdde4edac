//! Who in this process waits for a value to change, for stores that are told of changes.

use tokio::sync::Notify;

use crate::store::registry::{Entry, Registry};

/// By what a store calls the value.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    watched: Registry<String, Notify>,
}

/// One who watches a value. Its `notified()` rings at changes from the moment on at which it is enabled: whoever looks
/// first enables it.
pub(crate) type Watch = Entry<String, Notify>;

impl Watchers {
    pub(crate) fn watch(&self, key: String) -> Watch {
        self.watched.join(key)
    }

    /// Has everybody look who watches this.
    pub(crate) fn ring(&self, key: &str) {
        if let Some(bell) = self.watched.get(key) {
            bell.notify_waiters();
        }
    }

    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn ring_all(&self) {
        self.watched.all().iter().for_each(|bell| bell.notify_waiters());
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
        let rings = watchers.watched.get("cell:x");
        drop(first);
        assert_eq!(watchers.watched.len(), 1);
        drop(second);
        assert_eq!(watchers.watched.len(), 0);
        drop(rings);
    }
}
