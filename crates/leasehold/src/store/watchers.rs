//! The tasks of this process that wait for a value to change, for stores with notifications.

use tokio::sync::Notify;

use crate::store::registry::{Entry, Registry};

/// The watched values by key.
pub(crate) type Watchers = Registry<String, Notify>;

/// A watch of one value. A task enables its `notified()` before it reads, to miss no change.
pub(crate) type Watch = Entry<String, Notify>;

impl Watchers {
    pub(crate) fn watch(&self, key: String) -> Watch {
        self.join(key)
    }

    pub(crate) fn ring(&self, key: &str) {
        if let Some(bell) = self.get(key) {
            bell.notify_waiters();
        }
    }

    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn ring_all(&self) {
        self.all().iter().for_each(|bell| bell.notify_waiters());
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_forgotten_when_the_last_who_watches_it_goes() {
        let watchers = Watchers::default();
        let (first, second) = (watchers.watch("cell:x".to_owned()), watchers.watch("cell:x".to_owned()));
        // A caller of `ring` has the value for a moment, as here.
        let rings = watchers.get("cell:x");
        drop(first);
        assert_eq!(watchers.len(), 1);
        drop(second);
        assert_eq!(watchers.len(), 0);
        drop(rings);
    }
}
