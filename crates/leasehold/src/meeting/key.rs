//! The key to a room.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::name::Name;
use crate::tenancy::Terms;
use crate::token::Owner;
use crate::ttl::Ttl;

/// A room: only tasks that want the same name, exclusively, on the same terms, can be served by one grant.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// Of all the rest; worked out once, since every lock and release looks a room up.
    pub(super) hash: u64,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) terms: Terms,
}

impl Key {
    pub(crate) fn ttl(&self) -> Ttl {
        self.terms.ttl
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.terms == other.terms
            && self.name == other.name
            && self.owner == other.owner
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Passes on the hash that a key brings along.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "a key brings its hash along");
    }
}

pub(super) type ByHash = BuildHasherDefault<AsItIs>;
