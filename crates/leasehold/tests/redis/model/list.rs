//! A short list without a heap allocation, so that a state is copied as one block of memory.

use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy)]
pub(crate) struct List<T, const N: usize> {
    items: [T; N],
    len: u8,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    pub(crate) fn insert(&mut self, at: usize, item: T) {
        assert!(usize::from(self.len) < N, "the list is full: the setup allows more than it has room for");
        self.items.copy_within(at..usize::from(self.len), at + 1);
        self.items[at] = item;
        self.len += 1;
    }

    pub(crate) fn push(&mut self, item: T) {
        self.insert(self.len(), item);
    }

    pub(crate) fn remove(&mut self, at: usize) -> T {
        let item = self[at];
        self.items.copy_within(at + 1..usize::from(self.len), at);
        self.len -= 1;
        item
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for at in (0..self.len()).rev() {
            if !keep(&self[at]) {
                self.remove(at);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        List { items: [T::default(); N], len: 0 }
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: std::fmt::Debug, const N: usize> std::fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
