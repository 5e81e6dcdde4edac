//! The queue of the Redis store.

mod clients;
mod explorer;
mod faults;
mod holds;
mod list;
mod normal_form;
mod properties;
mod schedule;
mod scripts;
mod settle;
mod state;
mod steps;

use leasehold_testkit::scaled;
use properties::PROPERTIES;
use state::{NO_FAULTS, Profile, PushCounts, Setup, Share};

const EXCLUSIVE: Profile = Profile { share: Share::Exclusive, ttl: 2, polls: false };
const POLLER: Profile = Profile { polls: true, ..EXCLUSIVE };
const READER: Profile = Profile { share: Share::Reader, ..EXCLUSIVE };
const PERMIT: Profile = Profile { share: Share::Permits { take: 1, barging: false }, ..EXCLUSIVE };
const BARGING: Profile = Profile { share: Share::Permits { take: 1, barging: true }, ..EXCLUSIVE };

/// Two clients that ask once and release. Nothing fails. Every run says what it adds.
const BARE: Setup = Setup {
    clients: &[EXCLUSIVE; 2],
    opening: 0,
    limit: 2,
    window: 16,
    attempts: 1,
    asks: 1,
    releases: 2,
    renewals: 0,
    cancels: false,
    repeats_wait: false,
    late: 1,
    stay: 1,
    here: 2,
    in_flight: 3,
    faults: NO_FAULTS,
    push_counts: PushCounts::FromFirstAsk,
    without: &[],
};

fn every_property() -> Vec<&'static str> {
    PROPERTIES.iter().map(|(name, _)| *name).collect()
}

/// All states of a run that has no more than this, at full scale; a hundredth of them at the scale of CI.
fn within(states: usize) -> usize {
    let part = if scaled(1_000) < 1_000 { 10 } else { 1 };
    (scaled(states as u64) / part).max(20_000) as usize
}
