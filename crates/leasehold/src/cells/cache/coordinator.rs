//! The task that asks the store for all of a client's callers that wait for one key.
//!
//! No caller does this, unlike in a local queue, because a caller may be kept and not polled: the
//! right to load goes to the first caller that is polled. The task ends with a value, an error, or
//! when the last caller has gone, and withdraws its claim.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::entry::Snapshot;
use super::key::CacheKey;
use super::load::{LoadTurn, read};
use super::single_flight::{Flight, LoadEnd, News, Told};
use crate::clock::Deadline;
use crate::error::Result;
use crate::kinds;
use crate::locks::Client;
use crate::sync::{Arc, Mutex};

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Coordinator {
    pub(super) client: Arc<Client>,
    pub(super) key: Arc<CacheKey>,
    pub(super) lock: kinds::mutex::Mutex,
    pub(super) flight: Flight,
    pub(super) news: Arc<watch::Sender<News>>,
    pub(super) before: Option<Arc<Snapshot>>,
}

impl Coordinator {
    pub(super) async fn run(mut self) {
        let (client, flight, news) = (self.client.clone(), self.flight.clone(), self.news.clone());
        let mut value = pin!(client.while_open(self.value()));
        let told = loop {
            tokio::select! {
                biased;
                () = news.closed() => if flight.end_if_unused(&news) {
                    return;
                },
                told = &mut value => break told,
            }
        };
        flight.end(&news, told);
    }

    /// Returns a fresh value, loaded by another client or by a caller.
    async fn value(&mut self) -> Result<Told> {
        loop {
            // Usually the lock is free, and there is nothing to watch.
            let mut lease = self.lock.try_lock().await?;
            let mut claim = pin!(self.lock.lock());
            let turn = loop {
                if lease.is_none() {
                    // A change that brings no value does not cost the place in the store's queue.
                    tokio::select! {
                        biased;
                        granted = claim.as_mut() => lease = Some(granted?),
                        () = self.changed() => {}
                    }
                }
                let number = self.flight.begin();
                let snapshot = Arc::new(read(&self.client, &self.key).await?);
                self.before = Some(snapshot.clone());
                if snapshot.is_fresh() {
                    return Ok(Told { number, snapshot });
                }
                if let Some(lease) = lease.take() {
                    break LoadTurn { lease, before: Some(snapshot), end: None };
                }
            };
            if let Some(told) = self.offer(turn).await {
                return Ok(told);
            }
        }
    }

    /// Offers the turn to the callers, waits for the load, and returns the written value.
    async fn offer(&self, mut turn: LoadTurn) -> Option<Told> {
        let (told, ended) = oneshot::channel();
        turn.end = Some(LoadEnd { flight: self.flight.clone(), told });
        self.news.send_replace(News::Turn(Mutex::new(Some(turn))));
        ended.await.ok()
    }

    /// Returns when the value may have changed since the newest read.
    async fn changed(&self) {
        let client = &self.client;
        let from = self.before.as_ref().and_then(|snapshot| snapshot.raw.as_deref());
        let changed = match client.cells(super::WHAT) {
            Ok(store) => store.changed(&self.key.cell, from, Deadline::FAR).await,
            Err(error) => Err(error),
        };
        // If the store stays unreachable, the claim fails and tells why.
        if changed.is_err() {
            client.clock().sleep_until(client.clock().now().plus(PAUSE)).await;
        }
    }
}
