//! Who stopped waiting, and what becomes of a grant that comes for one of them all the same: it is given back (A7). The janitor
//! has withdrawn such a claim, so this is for what a network kept and delivered late.

use std::collections::{HashMap, VecDeque};

use redis::Cmd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::keys::Keys;
use super::link::Link;
use super::{Redis, script};
use crate::claim::{Claim, Names, Wait};
use crate::sync::{Arc, Mutex, lock};
use crate::token::Token;

/// So many are remembered; what comes for one before that, its TTL ends.
const REMEMBERED: usize = 256;

/// Those who waited and do so no more, and were not granted what they waited for.
#[derive(Debug)]
pub(super) struct Left {
    gone: Mutex<Gone>,
    unwanted: UnboundedSender<Unwanted>,
}

#[derive(Debug, Default)]
struct Gone {
    /// With what they waited for.
    names: HashMap<Token, Names>,
    /// The oldest first; also such as have come back since.
    order: VecDeque<Token>,
}

/// A grant to be given back.
#[derive(Debug)]
pub(super) struct Unwanted {
    token: Token,
    names: Names,
}

/// One who waits: unless it is granted, it is remembered as gone.
pub(super) struct Present<'a> {
    store: &'a Redis,
    claim: &'a Claim,
    is_granted: bool,
}

impl Left {
    pub(super) fn new() -> (Arc<Self>, UnboundedReceiver<Unwanted>) {
        let (unwanted, grants) = unbounded_channel();
        (Arc::new(Left { gone: Mutex::default(), unwanted }), grants)
    }

    /// A grant for whom nobody waits. One that is not known as gone has been granted already, and is told twice.
    pub(super) fn unwanted(&self, token: &str) {
        let Ok(token) = Token::parse(token) else { return };
        if let Some(names) = lock(&self.gone).names.remove(&token) {
            let _ = self.unwanted.send(Unwanted { token, names });
        }
    }
}

impl<'a> Present<'a> {
    pub(super) fn new(store: &'a Redis, claim: &'a Claim) -> Self {
        // One who asks again is there again.
        lock(&store.ears.left.gone).names.remove(&claim.ticket.token);
        Present { store, claim, is_granted: false }
    }

    pub(super) fn granted(mut self) {
        self.is_granted = true;
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        // One who does not wait is in no line, and nobody whom nobody tells is sent a grant.
        if self.is_granted || self.claim.wait == Wait::Never || !self.store.is_told() {
            return;
        }
        let (token, names) = (self.claim.ticket.token.clone(), self.claim.ticket.names.clone());
        let mut gone = lock(&self.store.ears.left.gone);
        if gone.order.len() == REMEMBERED
            && let Some(oldest) = gone.order.pop_front()
        {
            gone.names.remove(&oldest);
        }
        gone.order.push_back(token.clone());
        gone.names.insert(token, names);
    }
}

/// Gives back what nobody wants, for as long as there is a link.
pub(super) fn give_back(link: &Arc<Link>, keys: Arc<Keys>, mut grants: UnboundedReceiver<Unwanted>) {
    let link = Arc::downgrade(link);
    tokio::spawn(async move {
        while let Some(Unwanted { token, names }) = grants.recv().await {
            let Some(link) = link.upgrade() else { return };
            tracing::debug!("a grant came for one who waits no more; giving it back");
            if let Ok(session) = link.session().await {
                // Once: its TTL ends it in any case.
                let write = |to: &mut Cmd| {
                    keys.write_all(&names, to);
                    to.arg(token.expose());
                };
                let _ = link.run(&session, &script::RELEASE, write).await;
            }
        }
    });
}
