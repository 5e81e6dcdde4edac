//! The waiters of one local queue: first come, first served, and cheap to remove.

use std::collections::VecDeque;
use std::task::Waker;

/// The ids of waiters in order of arrival, each with its waker.
///
/// Invariants:
/// - ids rise from front to back, so a binary search finds a waiter;
/// - a removed waiter leaves a gap; there are never many more gaps than waiters;
/// - a list without waiters has no gaps, and keeps little memory.
#[derive(Default)]
pub(super) struct Waiters {
    places: VecDeque<(u64, Option<Waker>)>,
    count: usize,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a waiter. Ids are assigned under the same lock, so this one is the highest.
    pub(super) fn push(&mut self, id: u64, waker: Waker) {
        self.places.push_back((id, Some(waker)));
        self.count += 1;
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Waker> {
        let place = self.find(id)?;
        self.places[place].1.as_mut()
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Waker> {
        let place = self.find(id)?;
        let waker = self.places[place].1.take()?;
        self.removed();
        Some(waker)
    }

    pub(super) fn pop_first(&mut self) -> Option<(u64, Waker)> {
        while let Some((id, waker)) = self.places.pop_front() {
            if let Some(waker) = waker {
                self.removed();
                return Some((id, waker));
            }
        }
        None
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = (u64, Waker)> {
        self.places.into_iter().filter_map(|(id, waker)| Some((id, waker?)))
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.places.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    fn removed(&mut self) {
        self.count -= 1;
        if self.places.len() > 2 * self.count + 64 {
            self.places.retain(|(_, waker)| waker.is_some());
        }
        // Under contention the list is never empty for long, so a small one keeps its memory.
        if self.count == 0 {
            self.places.clear();
            self.places.shrink_to(64);
        }
    }
}
