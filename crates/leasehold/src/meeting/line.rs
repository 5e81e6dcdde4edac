//! The line before one room of the meeting: first come, first served, and quick to leave.

use std::collections::VecDeque;
use std::task::Waker;

/// Guests in order of arrival, each with its waker.
///
/// Invariants:
/// - numbers rise from front to back, so a guest is found by halving;
/// - one who leaves from the middle leaves a gap; there are never many more gaps than guests;
/// - a line without guests has no gaps, and keeps little memory.
#[derive(Default)]
pub(super) struct Line {
    places: VecDeque<(u64, Option<Waker>)>,
    guests: usize,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.guests
    }

    pub(super) fn is_empty(&self) -> bool {
        self.guests == 0
    }

    /// Takes the last place. Numbers are given out under the same lock, so this one is the highest.
    pub(super) fn push(&mut self, guest: u64, waker: Waker) {
        self.places.push_back((guest, Some(waker)));
        self.guests += 1;
    }

    /// The guest's waker, to be kept up to date.
    pub(super) fn get_mut(&mut self, guest: u64) -> Option<&mut Waker> {
        let place = self.find(guest)?;
        self.places[place].1.as_mut()
    }

    pub(super) fn remove(&mut self, guest: u64) -> Option<Waker> {
        let place = self.find(guest)?;
        let waker = self.places[place].1.take()?;
        self.gone();
        Some(waker)
    }

    pub(super) fn pop_first(&mut self) -> Option<(u64, Waker)> {
        while let Some((guest, waker)) = self.places.pop_front() {
            if let Some(waker) = waker {
                self.gone();
                return Some((guest, waker));
            }
        }
        None
    }

    pub(super) fn into_guests(self) -> impl Iterator<Item = (u64, Waker)> {
        self.places.into_iter().filter_map(|(guest, waker)| Some((guest, waker?)))
    }

    fn find(&self, guest: u64) -> Option<usize> {
        self.places.binary_search_by_key(&guest, |(number, _)| *number).ok()
    }

    fn gone(&mut self) {
        self.guests -= 1;
        if self.places.len() > 2 * self.guests + 64 {
            self.places.retain(|(_, waker)| waker.is_some());
        }
        // Under contention the line is never empty for long; a small one keeps its room.
        if self.guests == 0 {
            self.places.clear();
            self.places.shrink_to(64);
        }
    }
}
