//! Notifications after a commit: directly for tasks of this process, by a poke for others.
//!
//! A poke is a datagram without data to another client, which then reads all rows that concern it.
//! If the receive queue is full, a poke may be dropped, because the client has others to read. A
//! poke with a text is also a notice (see `store/notices.rs`), which may be lost.

use std::io;
use std::os::unix::net::UnixDatagram;

use tokio::sync::mpsc::UnboundedSender;

use super::liveness::{ClientId, Clients, POKE};
use super::rows::WaiterUpdate;
use super::txn::Notifications;
use crate::claim::{Grant, Names};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::waiters::Waiters;
use crate::store::watchers::Watchers;
use crate::store::{Notice, Notices};
use crate::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct LocalWaiters {
    pub(super) claims: Waiters<Option<Grant>>,
    pub(super) values: Watchers,
    pub(super) notices: Notices,
}

impl LocalWaiters {
    pub(super) fn wake(&self, updates: Vec<WaiterUpdate>, changed: &[String]) {
        for WaiterUpdate { token, grant } in updates {
            self.claims.ring(&token, grant);
        }
        changed.iter().for_each(|key| self.values.ring(key));
    }

    /// Makes every waiter check the database again.
    pub(super) fn wake_all(&self) {
        self.claims.ring_all();
        self.values.ring_all();
    }
}

/// Work that follows from a transaction or from sending its notifications.
#[derive(Debug)]
pub(super) enum FollowUp {
    /// The client's socket refused a poke, so the client may be dead.
    CheckLiveness(ClientId),
    /// More waiters of this name can be granted.
    GrantWaiters(Name),
}

#[derive(Debug)]
pub(super) struct Notifier {
    clients: Clients,
    socket: UnixDatagram,
    waiters: Arc<LocalWaiters>,
    follow_ups: UnboundedSender<FollowUp>,
}

impl Notifier {
    pub(super) fn new(
        clients: Clients,
        waiters: Arc<LocalWaiters>,
        follow_ups: UnboundedSender<FollowUp>,
    ) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Notifier { clients, socket, waiters, follow_ups })
    }

    pub(super) fn send(&self, notifications: Notifications) {
        let Notifications { waiters, changed, pokes, evicted, unfinished } = notifications;
        self.waiters.wake(waiters, &changed);
        for client in pokes {
            self.poke(client, "");
        }
        for (client, name) in evicted {
            self.poke(client, &Notice::Evicted { name }.to_text(""));
        }
        for name in unfinished {
            self.follow_up(FollowUp::GrantWaiters(name));
        }
    }

    /// Tells every client, including this one, that the work under an evicted lease has ended.
    pub(super) fn send_ended(&self, names: &Names, fence: Fence) -> io::Result<()> {
        let clients = self.clients.list()?;
        for name in names {
            let text = Notice::Ended { name: name.clone(), fence }.to_text("");
            clients.iter().for_each(|client| self.poke(*client, &text));
        }
        Ok(())
    }

    fn poke(&self, client: ClientId, text: &str) {
        let socket = self.clients.socket(client, POKE);
        let sent = socket.and_then(|socket| self.socket.send_to(text.as_bytes(), &socket.path));
        // After any other error the client's waiters check again by themselves.
        if let Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =
            sent.map_err(|error| error.kind())
        {
            self.follow_up(FollowUp::CheckLiveness(client));
        }
    }

    fn follow_up(&self, work: FollowUp) {
        // The receiver is gone when the store is being closed.
        let _ = self.follow_ups.send(work);
    }
}
