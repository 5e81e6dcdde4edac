//! The rule of whether a claim fits beside the holders of a name, for stores in this process.

use crate::claim::Share;

/// The shares of all holders of a name, added up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) exclusive: usize,
    pub(crate) shared: usize,
    pub(crate) permits: u64,
}

impl Occupancy {
    pub(crate) fn add(&mut self, share: Share) {
        match share {
            Share::Exclusive => self.exclusive += 1,
            Share::Shared => self.shared += 1,
            Share::Permits(permits) => self.permits += u64::from(permits.take()),
        }
    }

    pub(crate) fn remove(&mut self, share: Share) {
        match share {
            Share::Exclusive => self.exclusive -= 1,
            Share::Shared => self.shared -= 1,
            Share::Permits(permits) => self.permits -= u64::from(permits.take()),
        }
    }

    pub(crate) fn admits(self, share: Share) -> bool {
        let Occupancy { exclusive, shared, permits: used } = self;
        match share {
            Share::Exclusive => exclusive == 0 && shared == 0 && used == 0,
            Share::Shared => exclusive == 0 && used == 0,
            Share::Permits(permits) => {
                let limit = u64::from(permits.limit());
                exclusive == 0 && shared == 0 && used + u64::from(permits.take()) <= limit
            }
        }
    }
}
