//! Room for others: libraries that poll never see a key free that goes from hand to hand, so it is left free now and then.

use std::collections::HashMap;

use crate::claim::Names;
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// For how long ours keep off, in ms: enough for those who poll every few ms, and a chance for those who do so less often.
const MOMENT_MS: &str = "50";

/// Of so many names it is remembered how often they were released. With more than that, counting begins anew.
const NAMES_MAX: usize = 1_024;

/// How often this client leaves a name free.
#[derive(Debug, Default)]
pub(super) struct Manners {
    /// At every so many releases; never if that is 0.
    every: u64,
    releases: Mutex<HashMap<Names, u64>>,
}

impl Manners {
    pub(super) fn new(every: u64) -> Self {
        Manners { every, releases: Mutex::default() }
    }

    /// `?yield_every=`
    pub(super) fn parsed(text: &str) -> Result<u64> {
        match text.parse() {
            Ok(every @ 1..=1_000_000) => Ok(every),
            _ => {
                let why = "write after how many releases, 1 to 1000000; leave it out for never";
                Err(Error::invalid("yield_every in the store URL", text, why))
            }
        }
    }

    /// For how long ours are to keep off these names after the release that is about to be sent, in ms; if at all.
    pub(super) fn moment(&self, names: &Names) -> Option<&'static str> {
        if self.every == 0 {
            return None;
        }
        let mut releases = lock(&self.releases);
        if releases.len() >= NAMES_MAX && !releases.contains_key(names) {
            releases.clear();
        }
        let count = releases.entry(names.clone()).or_default();
        *count += 1;
        count.is_multiple_of(self.every).then_some(MOMENT_MS)
    }
}
