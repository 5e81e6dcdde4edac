//! Who of this process waits, and from which nodes it has heard that the name is free. One node is not enough to go by: until a
//! majority of them is free, to ask again is in vain.

use std::collections::HashMap;

use tokio::sync::Notify;

use super::round::Place;
use crate::sync::{Arc, Mutex, lock};
use crate::token::Token;

#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: Mutex<HashMap<Token, Arc<Ear>>>,
}

#[derive(Debug, Default)]
struct Ear {
    heard: Mutex<News>,
    rung: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct News {
    /// One bit a node.
    free: u64,
    /// The highest fence that is not to be had any more.
    last: u64,
}

/// One who waits; gone when it does so no more.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    calls: &'a Calls,
    token: &'a Token,
    ear: Arc<Ear>,
}

impl Calls {
    pub(super) fn listen<'a>(&'a self, token: &'a Token) -> Waiting<'a> {
        let ear: Arc<Ear> = Arc::default();
        lock(&self.waiting).insert(token.clone(), ear.clone());
        Waiting { calls: self, token, ear }
    }

    /// A node says that the name this token waits for is free on it.
    pub(super) fn call(&self, place: Place, token: &str, last: u64) {
        let Ok(token) = Token::parse(token) else { return };
        let Some(ear) = lock(&self.waiting).get(&token).cloned() else { return };
        {
            let mut heard = lock(&ear.heard);
            heard.free |= 1 << place;
            heard.last = heard.last.max(last);
        }
        ear.rung.notify_one();
    }
}

impl Waiting<'_> {
    /// Forgets what was heard so far: it is asked anew.
    pub(super) fn reset(&self) {
        lock(&self.ear.heard).free = 0;
    }

    /// Ends when something was heard; says from how many nodes, and the highest fence.
    pub(super) async fn heard(&self) -> (usize, u64) {
        self.ear.rung.notified().await;
        let News { free, last } = *lock(&self.ear.heard);
        (free.count_ones() as usize, last)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.calls.waiting);
        // The same token may have been asked for again.
        if waiting.get(self.token).is_some_and(|ear| Arc::ptr_eq(ear, &self.ear)) {
            waiting.remove(self.token);
        }
    }
}
