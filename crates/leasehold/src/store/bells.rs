//! A bell for each claim of this process that waits, rung by whoever hears news of it.

use std::collections::HashMap;

use tokio::sync::Notify;

use crate::sync::{Arc, Mutex, lock};
use crate::token::Token;

/// The waiters of this process, each with the news for it.
#[derive(Debug)]
pub(crate) struct Bells<T> {
    waiting: Mutex<HashMap<Token, Arc<Bell<T>>>>,
}

impl<T> Default for Bells<T> {
    fn default() -> Self {
        Bells { waiting: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct Bell<T> {
    news: Mutex<T>,
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
    pub(crate) fn hang<'a>(&'a self, token: &'a Token) -> Waiting<'a, T>
    where
        T: Default,
    {
        let bell: Arc<Bell<T>> = Arc::default();
        lock(&self.waiting).insert(token.clone(), bell.clone());
        Waiting { bells: self, token, bell }
    }

    /// Adds to the news of a waiter and wakes it. Returns false if no claim with this token waits.
    pub(crate) fn tell(&self, token: &str, add: impl FnOnce(&mut T)) -> bool {
        let Ok(token) = Token::parse(token) else { return false };
        let Some(bell) = lock(&self.waiting).get(&token).cloned() else { return false };
        add(&mut lock(&bell.news));
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

impl<T> Bells<Option<T>> {
    /// Wakes a waiter, with news that replace what it has not read yet. Returns false if no claim with this token waits.
    pub(crate) fn ring(&self, token: &str, news: Option<T>) -> bool {
        self.tell(token, |last| {
            if news.is_some() {
                *last = news;
            }
        })
    }
}

impl<T> Waiting<'_, T> {
    /// Ends at the next ring, with what `read` returns.
    pub(crate) async fn told<R>(&self, read: impl FnOnce(&mut T) -> R) -> R {
        self.bell.rung.notified().await;
        self.read(read)
    }

    /// Reads or changes the news without waiting.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&mut T) -> R) -> R {
        read(&mut lock(&self.bell.news))
    }
}

impl<T> Waiting<'_, Option<T>> {
    /// Ends at the next ring, with what it was rung for, if that was said.
    pub(crate) async fn rung(&self) -> Option<T> {
        self.told(Option::take).await
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
