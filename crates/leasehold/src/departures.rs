//! Waiting for evicted holders: until each has confirmed that its work has ended, or its lease has run out.

use crate::claim::{Evicted, Holder};
use crate::clock::Deadline;
use crate::debug::debug_parts;
use crate::error::Result;
use crate::locks::Client;
use crate::name::{IntoName, Name};
use crate::renewal::next_notice;
use crate::store::{Notice, NoticeReceiver};
use crate::sync::Arc;

/// Watches for the end of what evicted holders do. See [`Locks::departures`](crate::Locks::departures).
///
/// A holder confirms its end when it lets go of the lease that it has lost: `run` of a lease after its future was dropped,
/// `leasehold run` after everything that the command started has ended. The confirmation is a message, and nothing is
/// stored: one that is lost, or that a store cannot carry, costs the time until the lease has run out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::connect("memory:").await?;
/// let lease = locks.mutex("orders:42").lock().await?;
///
/// let departures = locks.departures();
/// let evicted = locks.evict("orders:42").await?;
/// drop(lease);
/// let departed = departures.of("orders:42", &evicted).await?;
/// assert_eq!(departed[0].how, leasehold::Departure::Confirmed);
/// # Ok(()) }
/// ```
#[must_use = "nothing is waited for before `of` is awaited"]
pub struct Departures {
    client: Arc<Client>,
    notices: Option<NoticeReceiver>,
}

/// One evicted holder, and how it ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Departed {
    /// Who held it.
    pub holder: Holder,
    /// How it ended.
    pub how: Departure,
}

/// How an evicted holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// The holder has confirmed that its work has ended.
    Confirmed,
    /// The holder has not confirmed its end, but its lease has run out: a client that keeps to its deadline has stopped.
    Expired,
    /// It is a lock of another library that has no end. Nothing tells when its holder stops.
    Unknown,
}

impl Departures {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        let notices = client.store.notices();
        Departures { client, notices }
    }

    /// Waits until each of these holders has confirmed its end, or its lease has run out. This takes no longer than the
    /// longest of their TTLs.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a bad name.
    ///
    /// # Cancel safety
    /// Only waits; can be dropped at any time.
    pub async fn of(mut self, name: impl IntoName, evicted: &Evicted) -> Result<Vec<Departed>> {
        let name: Name = name.into_name()?;
        let clock = self.client.clock().clone();
        let now = clock.now();
        let mut open: Vec<(Holder, Deadline)> = Vec::new();
        let mut departed = Vec::new();
        for holder in evicted.holders.iter().cloned() {
            let runs_out = now.plus(holder.remaining);
            match holder.is_endless() {
                true => departed.push(Departed { holder, how: Departure::Unknown }),
                false => open.push((holder, runs_out)),
            }
        }
        while let Some(first) = open.iter().map(|(_, runs_out)| *runs_out).min() {
            let notice = clock.until(first, next_notice(&mut self.notices)).await.flatten();
            let now = clock.now();
            let confirms = |holder: &Holder| match &notice {
                Some(Notice::Ended { name: its, fence }) => *its == name && holder.fence == Some(*fence),
                _ => false,
            };
            open.retain(|(holder, runs_out)| {
                let how = match confirms(holder) {
                    true => Departure::Confirmed,
                    false if now >= *runs_out => Departure::Expired,
                    false => return true,
                };
                departed.push(Departed { holder: holder.clone(), how });
                false
            });
        }
        Ok(departed)
    }
}

debug_parts!(Departures:);
