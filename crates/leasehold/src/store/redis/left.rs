//! Who stopped waiting, and what becomes of a grant that comes for one of them all the same: it is given back (A7). The janitor
//! has withdrawn such a claim, so this is for what a network kept and delivered late.

use std::collections::{HashMap, VecDeque};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::link::Link;
use super::{Redis, script};
use crate::claim::{Claim, Wait};
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
    /// With what a release takes.
    keys: HashMap<Token, Vec<String>>,
    /// The oldest first; also such as have come back since.
    order: VecDeque<Token>,
}

/// A grant to be given back.
#[derive(Debug)]
pub(super) struct Unwanted {
    token: Token,
    keys: Vec<String>,
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
        if let Some(keys) = lock(&self.gone).keys.remove(&token) {
            let _ = self.unwanted.send(Unwanted { token, keys });
        }
    }
}

impl<'a> Present<'a> {
    pub(super) fn new(store: &'a Redis, claim: &'a Claim) -> Self {
        // One who asks again is there again.
        lock(&store.left.gone).keys.remove(&claim.ticket.token);
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
        let (token, keys) = (self.claim.ticket.token.clone(), self.store.keys(&self.claim.ticket.names));
        let mut gone = lock(&self.store.left.gone);
        if gone.order.len() == REMEMBERED
            && let Some(oldest) = gone.order.pop_front()
        {
            gone.keys.remove(&oldest);
        }
        gone.order.push_back(token.clone());
        gone.keys.insert(token, keys);
    }
}

/// Gives back what nobody wants, for as long as there is a link.
pub(super) fn give_back(link: &Arc<Link>, mut grants: UnboundedReceiver<Unwanted>) {
    let link = Arc::downgrade(link);
    tokio::spawn(async move {
        while let Some(Unwanted { token, keys }) = grants.recv().await {
            let Some(link) = link.upgrade() else { return };
            tracing::debug!("a grant came for one who waits no more; giving it back");
            if let Ok(session) = link.session().await {
                // Once: its TTL ends it in any case.
                let _ = link.run(&session, &script::RELEASE, &keys, &[token.expose()]).await;
            }
        }
    });
}
