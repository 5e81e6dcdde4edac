//! The wait for evicted holders: until each has confirmed its end, or its lease has expired.

use crate::claim::{Evicted, Holder};
use crate::clock::Deadline;
use crate::debug::debug_parts;
use crate::error::Result;
use crate::locks::Client;
use crate::name::{IntoName, Name};
use crate::renewal::next_notice;
use crate::store::{Notice, NoticeReceiver};
use crate::sync::Arc;

/// A watch for the end of evicted holders, made by [`Locks::departures`](crate::Locks::departures).
///
/// A holder confirms the end when it releases the lost lease: `run` of a lease after the future was
/// dropped, `leasehold run` after everything that the command started has ended. The confirmation
/// is not stored: if it is lost, or the store cannot send it, the wait ends with the lease.
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
    /// The holder.
    pub holder: Holder,
    /// The kind of its end.
    pub how: Departure,
}

/// The kind of end of an evicted holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// The holder confirmed that its work has ended.
    Confirmed,
    /// The lease expired without a confirmation: a client that respects its deadline has stopped.
    Expired,
    /// The lock is another library's and has no expiry: its end cannot be observed.
    Unknown,
}

impl Departures {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        let notices = client.store.notices();
        Departures { client, notices }
    }

    /// Waits until each holder has confirmed its end or its lease has expired, at most for a TTL.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for an invalid name.
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
