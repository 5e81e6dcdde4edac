//! Notices between the clients of a store: evictions, and the end of an evicted holder's work.
//!
//! A notice is a hint. It may be lost, repeated or forged. A client that gets one only checks its
//! own lease, and behind every notice is a renewal or the end of a lease.

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::claim::Names;
use crate::fence::Fence;
use crate::name::Name;

/// The most notices that are kept for a client that does not read them.
const QUEUED_MAX: usize = 256;

/// A message from one client of a store to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A name was taken from a holder.
    Evicted {
        /// The name.
        name: Name,
    },
    /// The work under an evicted lease has ended.
    Ended {
        /// A name of the lease.
        name: Name,
        /// The fence of the lease.
        fence: Fence,
    },
}

/// The notices that a store has received, for all of its clients.
#[derive(Debug)]
pub struct Notices {
    sender: broadcast::Sender<Notice>,
}

impl Default for Notices {
    fn default() -> Self {
        Notices { sender: broadcast::Sender::new(QUEUED_MAX) }
    }
}

impl Notices {
    /// Passes a notice on to every receiver. It wakes them, so the caller must hold no lock.
    pub fn send(&self, notice: Notice) {
        // Without a receiver there is no client to tell.
        let _ = self.sender.send(notice);
    }

    /// Sends [`Notice::Ended`] for all names of a lease.
    pub fn send_ended(&self, names: &Names, fence: Fence) {
        names.into_iter().for_each(|name| self.send(Notice::Ended { name: name.clone(), fence }));
    }

    /// Returns a receiver of the notices from now on.
    pub fn subscribe(&self) -> NoticeReceiver {
        NoticeReceiver { receiver: self.sender.subscribe() }
    }
}

/// A client's copy of the notices of a store.
#[derive(Debug)]
pub struct NoticeReceiver {
    receiver: broadcast::Receiver<Notice>,
}

impl NoticeReceiver {
    /// Returns the next notice, or `None` if some were missed. Waits for ever once the store is
    /// gone.
    ///
    /// # Cancel safety
    /// A dropped future has taken no notice.
    pub async fn next(&mut self) -> Option<Notice> {
        match self.receiver.recv().await {
            Ok(notice) => Some(notice),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// The text between processes, in lines: `evicted` and the key, or `ended`, the fence in hex and
/// the key. The key is the name behind a prefix.
#[cfg(all(any(all(feature = "file", target_os = "linux"), feature = "redis"), not(shuttle)))]
impl Notice {
    pub(crate) fn to_text(&self, prefix: &str) -> String {
        match self {
            Notice::Evicted { name } => format!("evicted\n{prefix}{name}"),
            Notice::Ended { name, fence } => format!("ended\n{:x}\n{prefix}{name}", fence.get()),
        }
    }

    /// Returns `None` for a text that is no notice, or is about another prefix.
    pub(crate) fn parse(text: &str, prefix: &str) -> Option<Self> {
        let name = |key: &str| Name::new(key.strip_prefix(prefix)?).ok();
        let (word, rest) = text.split_once('\n')?;
        match word {
            "evicted" => Some(Notice::Evicted { name: name(rest)? }),
            "ended" => {
                let (fence, key) = rest.split_once('\n')?;
                let fence = Fence::new(u64::from_str_radix(fence, 16).ok()?).ok()?;
                Some(Notice::Ended { name: name(key)?, fence })
            }
            _ => None,
        }
    }
}

#[cfg(all(test, feature = "redis", not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_notice_survives_its_text_and_a_hostile_text_is_none() {
        let name = Name::new("orders:42").unwrap_or_else(|error| panic!("{error}"));
        let fence = Fence::new(0xbeef).unwrap_or_else(|error| panic!("{error}"));
        for notice in [Notice::Evicted { name: name.clone() }, Notice::Ended { name, fence }] {
            assert_eq!(Notice::parse(&notice.to_text("lock:"), "lock:"), Some(notice.clone()));
            assert_eq!(Notice::parse(&notice.to_text("lock:"), "other:"), None);
        }
        for text in
            ["", "\n", "evicted", "evicted\n", "ended\nx\nlock:a", "ended\n-1\nlock:a", "gone\nlock:a"]
        {
            assert_eq!(Notice::parse(text, "lock:"), None, "{text:?}");
        }
    }
}
