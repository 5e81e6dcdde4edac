//! Telling whoever has to hear of a change: tasks of this process by a bell, other processes by a poke.
//!
//! A poke carries nothing. Whoever gets one reads what concerns it from the database, all at once, so that a poke that
//! finds the other's queue full may be dropped: it has others to read.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixDatagram;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::book::News;
use super::presence::{ClientId, Clients};
use crate::claim::Grant;
use crate::name::Name;
use crate::sync::{Arc, Mutex, lock};
use crate::token::Token;

/// What a transaction left to do.
#[derive(Debug)]
pub(super) enum Chore {
    /// It did not take a poke: it may have died.
    Suspect(ClientId),
    /// More can be admitted here.
    Admit(Name),
}

#[derive(Debug)]
pub(super) struct Messenger {
    clients: Clients,
    voice: UnixDatagram,
    bells: Arc<Bells>,
    chores: UnboundedSender<Chore>,
}

impl Messenger {
    pub(super) fn new(
        clients: Clients,
        bells: Arc<Bells>,
        chores: UnboundedSender<Chore>,
    ) -> io::Result<Self> {
        let voice = UnixDatagram::unbound()?;
        voice.set_nonblocking(true)?;
        Ok(Messenger { clients, voice, bells, chores })
    }

    pub(super) fn tell(&self, news: News) {
        let News { granted, looks, pokes, more } = news;
        for (token, grant) in granted {
            self.bells.ring(&token, Some(grant));
        }
        for token in looks {
            self.bells.ring(&token, None);
        }
        for client in pokes {
            self.poke(client);
        }
        for name in more {
            // Nobody listens where the store is being closed.
            let _ = self.chores.send(Chore::Admit(name));
        }
    }

    fn poke(&self, client: ClientId) {
        let sent = self.voice.send_to(&[], self.clients.poke_path(client));
        // Any other failure costs the time until it looks by itself.
        if let Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =
            sent.map_err(|error| error.kind())
        {
            let _ = self.chores.send(Chore::Suspect(client));
        }
    }
}

/// The waiters of this process.
#[derive(Debug, Default)]
pub(super) struct Bells {
    waiting: Mutex<HashMap<Token, Arc<Bell>>>,
}

#[derive(Debug, Default)]
pub(super) struct Bell {
    grant: Mutex<Option<Grant>>,
    rung: Notify,
}

/// A waiter's own bell; gone when it stops waiting.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    bells: &'a Bells,
    token: &'a Token,
    bell: Arc<Bell>,
}

impl Bells {
    pub(super) fn hang<'a>(&'a self, token: &'a Token) -> Waiting<'a> {
        let bell: Arc<Bell> = Arc::default();
        lock(&self.waiting).insert(token.clone(), bell.clone());
        Waiting { bells: self, token, bell }
    }

    pub(super) fn ring(&self, token: &str, grant: Option<Grant>) {
        let Ok(token) = Token::parse(token) else { return };
        let Some(bell) = lock(&self.waiting).get(&token).cloned() else { return };
        if grant.is_some() {
            *lock(&bell.grant) = grant;
        }
        bell.rung.notify_one();
    }

    pub(super) fn ring_all(&self) {
        let bells: Vec<Arc<Bell>> = lock(&self.waiting).values().cloned().collect();
        bells.iter().for_each(|bell| bell.rung.notify_one());
    }
}

impl Waiting<'_> {
    /// Ends at the next ring, with the grant if there is one.
    pub(super) async fn rung(&self) -> Option<Grant> {
        self.bell.rung.notified().await;
        lock(&self.bell.grant).take()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.bells.waiting);
        // The same token may have been asked for again.
        if waiting.get(self.token).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
            waiting.remove(self.token);
        }
    }
}
