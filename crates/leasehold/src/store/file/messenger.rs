//! Telling whoever has to hear of a change: tasks of this process by a bell, other processes by a poke.
//!
//! A poke carries nothing. Whoever gets one reads what concerns it from the database, all at once, so that a poke that
//! finds the other's queue full may be dropped: it has others to read. A poke with a text is also a notice (see
//! `store/notices.rs`), which may be lost.

use std::io;
use std::os::unix::net::UnixDatagram;

use tokio::sync::mpsc::UnboundedSender;

use super::book::News;
use super::presence::{ClientId, Clients};
use crate::claim::{Grant, Names};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::bells::Bells;
use crate::store::watchers::Watchers;
use crate::store::{Notice, Notices};
use crate::sync::Arc;

/// Those of this process who wait to be told something.
#[derive(Debug, Default)]
pub(super) struct Ears {
    pub(super) bells: Bells<Option<Grant>>,
    pub(super) watchers: Watchers,
    pub(super) notices: Notices,
}

impl Ears {
    /// Everybody looks.
    pub(super) fn ring_all(&self) {
        self.bells.ring_all();
        self.watchers.ring_all();
    }
}

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
    ears: Arc<Ears>,
    chores: UnboundedSender<Chore>,
}

impl Messenger {
    pub(super) fn new(clients: Clients, ears: Arc<Ears>, chores: UnboundedSender<Chore>) -> io::Result<Self> {
        let voice = UnixDatagram::unbound()?;
        voice.set_nonblocking(true)?;
        Ok(Messenger { clients, voice, ears, chores })
    }

    pub(super) fn tell(&self, news: News) {
        let News { granted, looks, changed, pokes, evicted, more } = news;
        for (token, grant) in granted {
            self.ears.bells.ring(&token, Some(grant));
        }
        for token in looks {
            self.ears.bells.ring(&token, None);
        }
        for key in changed {
            self.ears.watchers.ring(&key);
        }
        for client in pokes {
            self.poke(client, "");
        }
        for (client, name) in evicted {
            self.poke(client, &Notice::Evicted { name }.to_text(""));
        }
        for name in more {
            // Nobody listens where the store is being closed.
            let _ = self.chores.send(Chore::Admit(name));
        }
    }

    /// Tells every client of the store, this one among them, that the work under an evicted lease has ended.
    pub(super) fn tell_ended(&self, names: &Names, fence: Fence) -> io::Result<()> {
        let clients = self.clients.all()?;
        for name in names {
            let text = Notice::Ended { name: name.clone(), fence }.to_text("");
            clients.iter().for_each(|client| self.poke(*client, &text));
        }
        Ok(())
    }

    fn poke(&self, client: ClientId, text: &str) {
        let reached = self.clients.poke_socket(client);
        let sent = reached.and_then(|reached| self.voice.send_to(text.as_bytes(), &reached.path));
        // Any other failure costs the time until it looks by itself.
        if let Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =
            sent.map_err(|error| error.kind())
        {
            let _ = self.chores.send(Chore::Suspect(client));
        }
    }
}
