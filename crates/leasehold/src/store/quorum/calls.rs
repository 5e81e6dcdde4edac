//! Who of this process waits, and from which nodes it has heard that the name is free. One node is not enough to go by: until a
//! majority of them is free, to ask again is in vain.

use super::round::Place;
use crate::store::waiters::{Waiters, Waiting};

pub(super) type Calls = Waiters<News>;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct News {
    /// One bit a node.
    free: u64,
    /// The highest fence that is not to be had any more.
    last: u64,
}

impl Calls {
    /// A node says that the name this token waits for is free on it.
    pub(super) fn call(&self, place: Place, token: &str, last: u64) {
        self.tell(token, |news| {
            news.free |= 1 << place;
            news.last = news.last.max(last);
        });
    }
}

impl Waiting<'_, News> {
    /// Forgets what was heard so far: it is asked anew.
    pub(super) fn reset(&self) {
        self.read(|news| news.free = 0);
    }

    /// Ends when something was heard; says from how many nodes, and the highest fence.
    pub(super) async fn heard(&self) -> (usize, u64) {
        self.told(|news| (news.free.count_ones() as usize, news.last)).await
    }
}
