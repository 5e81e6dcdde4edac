//! A bell for each claim of this process that waits, rung by whoever hears news of it.

use std::collections::HashMap;

use tokio::sync::Notify;

use crate::sync::{Arc, Mutex, lock};
use crate::token::Token;

/// The waiters of this process.
#[derive(Debug)]
pub(crate) struct Bells<T> {
    waiting: Mutex<HashMap<Token, Arc<Bell<T>>>>,
}

impl<T> Default for Bells<T> {
    fn default() -> Self {
        Bells { waiting: Mutex::default() }
    }
}

#[derive(Debug)]
pub(crate) struct Bell<T> {
    news: Mutex<Option<T>>,
    rung: Notify,
}

/// A waiter's own bell; gone when it stops waiting.
#[derive(Debug)]
pub(crate) struct Waiting<'a, T> {
    bells: &'a Bells<T>,
    token: &'a Token,
    bell: Arc<Bell<T>>,
}

impl<T> Bells<T> {
    pub(crate) fn hang<'a>(&'a self, token: &'a Token) -> Waiting<'a, T> {
        let bell = Arc::new(Bell { news: Mutex::new(None), rung: Notify::new() });
        lock(&self.waiting).insert(token.clone(), bell.clone());
        Waiting { bells: self, token, bell }
    }

    /// Says whether anybody waits for it.
    pub(crate) fn ring(&self, token: &str, news: Option<T>) -> bool {
        let Ok(token) = Token::parse(token) else { return false };
        let Some(bell) = lock(&self.waiting).get(&token).cloned() else { return false };
        if news.is_some() {
            *lock(&bell.news) = news;
        }
        bell.rung.notify_one();
        true
    }

    /// Wakes every waiter. Only the file store needs it: it learns of a change without learning whose.
    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn ring_all(&self) {
        let bells: Vec<Arc<Bell<T>>> = lock(&self.waiting).values().cloned().collect();
        bells.iter().for_each(|bell| bell.rung.notify_one());
    }
}

impl<T> Waiting<'_, T> {
    /// Ends at the next ring, with what it was rung for, if that was said.
    pub(crate) async fn rung(&self) -> Option<T> {
        self.bell.rung.notified().await;
        lock(&self.bell.news).take()
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.bells.waiting);
        // The same token may have been asked for again.
        if waiting.get(self.token).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
            waiting.remove(self.token);
        }
    }
}
