//! The one who asks the store for all tasks of a client that wait for one key: one claim, one watch, one look for all of them.
//!
//! A task of its own, so that nobody waits for a future that is not polled. It ends when nobody waits any more.

use std::pin::pin;
use std::time::Duration;

use super::entry::Look;
use super::place::Place;
use super::room::{Room, Seat};
use super::turn::{Turn, read};
use crate::error::{Error, Result};
use crate::kinds::mutex::Mutex;
use crate::lease::Lease;
use crate::locks::Client;
use crate::sync::Arc;

/// How long two looks at a store that does not answer are apart.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Clerk {
    pub(super) client: Arc<Client>,
    pub(super) place: Arc<Place>,
    pub(super) lock: Mutex,
    pub(super) seat: Seat,
    /// What was there when it was last looked at.
    pub(super) before: Option<Arc<Look>>,
}

/// Goes with the clerk, also where its runtime ends.
struct OnDuty<'a>(&'a Room);

impl Drop for OnDuty<'_> {
    fn drop(&mut self) {
        self.0.clerk_leaves();
    }
}

enum Came {
    Lease(Lease),
    Change,
    NobodyLeft,
}

impl Clerk {
    pub(super) async fn attend(mut self) {
        let (seat, client) = (self.seat.again(), self.client.clone());
        let room = seat.room();
        let _on_duty = OnDuty(room);
        // Listens first and looks then, or a closing in between would go unheard.
        let mut closed = pin!(client.closing.rung.notified());
        closed.as_mut().enable();
        let served = match client.check_open() {
            Ok(()) => tokio::select! {
                biased;
                served = self.serve(room) => served,
                () = closed => Err(Error::Closed),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            room.tell_all(error);
        }
    }

    /// Until nobody waits any more.
    async fn serve(&mut self, room: &Room) -> Result<()> {
        while !room.is_deserted() {
            // Mostly it is free, and nobody is to be watched.
            let mut lease = self.lock.try_lock().await?;
            let mut claim = pin!(self.lock.lock());
            loop {
                if lease.is_none() {
                    // The place in line is kept through changes that bring no value.
                    match self.next(room, claim.as_mut()).await? {
                        Came::Lease(granted) => lease = Some(granted),
                        Came::Change => {}
                        Came::NobodyLeft => return Ok(()),
                    }
                }
                let number = room.begin();
                let look = Arc::new(read(&self.client, &self.place).await?);
                self.before = Some(look.clone());
                if look.is_fresh() {
                    room.tell(number, Ok(look));
                    break;
                }
                if let Some(lease) = lease.take() {
                    let (before, end) = (Some(look), Some(self.seat.turn_end()));
                    room.offer(Turn { lease, before, end });
                    room.turn_over().await;
                    break;
                }
            }
        }
        Ok(())
    }

    async fn next(&self, room: &Room, claim: impl Future<Output = Result<Lease>>) -> Result<Came> {
        tokio::select! {
            biased;
            () = room.deserted() => Ok(Came::NobodyLeft),
            lease = claim => lease.map(Came::Lease),
            () = self.changed() => Ok(Came::Change),
        }
    }

    /// Ends when what is there may be something else.
    async fn changed(&self) {
        let client = &self.client;
        let from = self.before.as_ref().and_then(|look| look.raw.as_deref());
        let far = crate::clock::Deadline::FAR;
        let changed = match client.cells(super::WHAT) {
            Ok(store) => store.changed(&self.place.cell, from, far).await,
            Err(error) => Err(error),
        };
        // The claim says what is wrong with a store, if it goes on.
        if changed.is_err() {
            client.clock().sleep_until(client.clock().now().plus(PAUSE)).await;
        }
    }
}
