//! The claims of this process that wait, each with a wake-up and its news.

use std::collections::HashMap;

use tokio::sync::Notify;

use crate::sync::{Arc, Mutex, lock};
use crate::token::Token;

#[derive(Debug)]
pub(crate) struct Waiters<T> {
    waiting: Mutex<HashMap<Token, Arc<Waiter<T>>>>,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Waiters { waiting: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct Waiter<T> {
    news: Mutex<T>,
    wake_up: Notify,
}

/// Keeps a claim in the list of waiters until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a, T> {
    waiters: &'a Waiters<T>,
    token: &'a Token,
    waiter: Arc<Waiter<T>>,
}

impl<T> Waiters<T> {
    pub(crate) fn hang<'a>(&'a self, token: &'a Token) -> Waiting<'a, T>
    where
        T: Default,
    {
        let waiter: Arc<Waiter<T>> = Arc::default();
        lock(&self.waiting).insert(token.clone(), waiter.clone());
        Waiting { waiters: self, token, waiter }
    }

    /// Adds to a waiter's news and wakes it. Returns `false` if no claim with this token waits.
    pub(crate) fn tell(&self, token: &str, add: impl FnOnce(&mut T)) -> bool {
        let Ok(token) = Token::parse(token) else { return false };
        let Some(waiter) = lock(&self.waiting).get(&token).cloned() else { return false };
        add(&mut lock(&waiter.news));
        waiter.wake_up.notify_one();
        true
    }

    /// Wakes every waiter. The file store learns of a change without learning whose.
    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn ring_all(&self) {
        let waiters: Vec<Arc<Waiter<T>>> = lock(&self.waiting).values().cloned().collect();
        waiters.iter().for_each(|waiter| waiter.wake_up.notify_one());
    }
}

impl<T> Waiters<Option<T>> {
    /// Like [`tell`](Waiters::tell), with news that replace those that the waiter has not read.
    pub(crate) fn ring(&self, token: &str, news: Option<T>) -> bool {
        self.tell(token, |last| {
            if news.is_some() {
                *last = news;
            }
        })
    }
}

impl<T> Waiting<'_, T> {
    /// Waits for the next wake-up, and returns what `read` does.
    pub(crate) async fn told<R>(&self, read: impl FnOnce(&mut T) -> R) -> R {
        self.waiter.wake_up.notified().await;
        self.read(read)
    }

    /// Reads or changes the news without waiting.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&mut T) -> R) -> R {
        read(&mut lock(&self.waiter.news))
    }
}

impl<T> Waiting<'_, Option<T>> {
    /// Waits for the next wake-up, and takes its news, if there are any.
    pub(crate) async fn rung(&self) -> Option<T> {
        self.told(Option::take).await
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiters.waiting);
        // The same token may have been requested again.
        if waiting.get(self.token).is_some_and(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            waiting.remove(self.token);
        }
    }
}
