//! What a client knows of a node's clock, and of how long the node has forgotten nothing: by its own clock, not by the node's
//! word alone.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Deadline;

/// So many leaps are remembered; one that is older than a lease's last renewal is of no interest any more.
const LEAPS_MAX: usize = 16;

/// What the time between two looks may be off by on this side, beside what clocks drift.
const SLACK: Duration = Duration::from_millis(50);

/// When a node's clock was read: somewhere between two moments of ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) sent: Deadline,
    pub(super) received: Deadline,
    pub(super) node_us: u64,
}

/// Our clock less the node's, in µs: at least this and at most that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offset {
    least: i64,
    most: i64,
}

impl Reading {
    fn offset(self) -> Offset {
        let less = |at: Deadline| {
            let ours = i64::try_from(at.as_ns() / 1_000).unwrap_or(i64::MAX);
            ours.saturating_sub(i64::try_from(self.node_us).unwrap_or(i64::MAX))
        };
        Offset { least: less(self.sent), most: less(self.received) }
    }
}

/// The node's clock was set forward between two readings.
#[derive(Debug, Clone, Copy)]
struct Leap {
    /// When the reading that shows it was asked for: what the node was asked from then on, it did after the leap.
    asked: Deadline,
    by: Duration,
}

/// Invariants:
/// - `offset` is that of the last reading: each is compared with the one before it, so that a clock that is slewed leaps nowhere;
/// - `trusted` grows at the pace of our own clock, whatever the node's clock does.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    offset: Option<Offset>,
    /// When the last reading was asked for.
    asked: Option<Deadline>,
    leaps: VecDeque<Leap>,
    life: Option<Life>,
}

/// One life of a node: from a start, or a flush, on.
#[derive(Debug)]
struct Life {
    run_id: String,
    /// How old it is known to be.
    trusted: Duration,
    /// What that is counted from: how old it said it was, and when. It stays, or what clocks may be off by would add up.
    said: Duration,
    since: Deadline,
    /// When it was last heard of.
    heard: Deadline,
}

impl Pulse {
    /// Takes note of an answer: which life it is of, its clock, and its age as it says.
    pub(super) fn beat(&mut self, run_id: &str, reading: Reading, says: Duration) {
        // Answers may be heard in another order than they were asked for.
        if self.asked.is_some_and(|asked| reading.sent < asked) {
            return;
        }
        self.asked = Some(reading.sent);
        let offset = reading.offset();
        if let Some(before) = self.offset {
            // Ours less theirs has fallen: theirs went ahead. By at least so much, wherever in both intervals it was read.
            let ahead_us = before.least.saturating_sub(offset.most);
            if let Ok(ahead_us @ 1..) = u64::try_from(ahead_us) {
                self.leaps.push_back(Leap { asked: reading.sent, by: Duration::from_micros(ahead_us) });
                self.leaps.drain(..self.leaps.len().saturating_sub(LEAPS_MAX));
            }
        }
        self.offset = Some(offset);
        let heard = reading.received;
        let begins =
            |age: Duration| Life { run_id: run_id.to_owned(), trusted: age, said: age, since: heard, heard };
        self.life = Some(match self.life.take() {
            Some(life) if life.run_id == run_id => {
                let passed = heard.since(life.since);
                // Younger than it was: it was flushed.
                if says < life.said + passed {
                    begins(says)
                } else {
                    Life { trusted: says.min(life.said + passed + passed / 100 + SLACK), heard, ..life }
                }
            }
            // It began after the last we heard of the life before it.
            Some(life) => begins(says.min(heard.since(life.heard))),
            None => begins(says),
        });
    }

    /// For how long it has forgotten nothing, as far as is known.
    pub(super) fn age(&self) -> Duration {
        self.life.as_ref().map_or(Duration::ZERO, |life| life.trusted)
    }

    /// What its clock says now, in µs, give or take a round trip.
    pub(super) fn node_us(&self, now: Deadline) -> Option<u64> {
        let Offset { least, most } = self.offset?;
        let ours = i64::try_from(now.as_ns() / 1_000).ok()?;
        u64::try_from(ours.saturating_sub(least.midpoint(most))).ok()
    }

    /// Whether its clock was set forward by more than that after what it was asked then.
    pub(super) fn has_leapt(&self, since: Deadline, allowed: Duration) -> bool {
        self.leaps.iter().any(|leap| leap.asked > since && leap.by > allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_US: u64 = 1_700_000_000_000_000;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Read at so many ms of ours, by a round trip of so many, with the node's clock so many µs ahead of where it began.
    fn reading(at: u64, round_trip: u64, ahead_us: i64) -> Reading {
        let sent = Deadline::from_ns(0).plus(ms(at));
        let node_us = START_US + at * 1_000 + round_trip * 500;
        Reading {
            sent,
            received: sent.plus(ms(round_trip)),
            node_us: node_us.saturating_add_signed(ahead_us),
        }
    }

    fn at(n: u64) -> Deadline {
        Deadline::from_ns(0).plus(ms(n))
    }

    fn old() -> Duration {
        Duration::from_secs(3_600)
    }

    #[test]
    fn a_leap_is_proven_only_where_the_intervals_do_not_meet() {
        let mut pulse = Pulse::default();
        pulse.beat("a", reading(0, 2, 0), old());
        // Within what the round trips leave open.
        pulse.beat("a", reading(100, 2, 1_900), old());
        assert!(!pulse.has_leapt(at(0), Duration::ZERO));
        pulse.beat("a", reading(200, 2, 50_000), old());
        assert!(pulse.has_leapt(at(150), ms(40)));
        assert!(!pulse.has_leapt(at(150), ms(60)), "a leap of less than is allowed");
        assert!(
            !pulse.has_leapt(at(200), ms(40)),
            "what was asked together with the reading came after the leap"
        );
        // Back is no danger to whoever holds: what it set on the node lasts longer.
        let mut pulse = Pulse::default();
        pulse.beat("a", reading(0, 2, 0), old());
        pulse.beat("a", reading(100, 2, -3_000_000), old());
        assert!(!pulse.has_leapt(at(0), Duration::ZERO));
    }

    #[test]
    fn a_clock_that_is_slewed_leaps_nowhere() {
        let mut pulse = Pulse::default();
        // Half a percent fast for ten minutes: three seconds in all, and never more than 50 ms at a time.
        for second in (0..600).step_by(10) {
            pulse.beat("a", reading(second * 1_000, 2, (second * 5_000) as i64), old());
        }
        assert!(!pulse.has_leapt(at(0), ms(102)));
    }

    #[test]
    fn a_node_is_no_older_than_our_own_clock_allows() {
        let mut pulse = Pulse::default();
        pulse.beat("a", reading(0, 2, 0), ms(0));
        // Its clock was set forward by an hour, and with it what it says of its age.
        pulse.beat("a", reading(1_000, 2, 3_600_000_000), old());
        assert!(pulse.age() < ms(1_100), "{:?}", pulse.age());
        pulse.beat("a", reading(10_000, 2, 3_600_000_000), old());
        assert!((ms(9_900)..ms(10_200)).contains(&pulse.age()), "{:?}", pulse.age());
        // However often it is asked.
        for at in 10_001..11_000 {
            pulse.beat("a", reading(at, 0, 3_600_000_000), old());
        }
        assert!((ms(10_900)..ms(11_200)).contains(&pulse.age()), "{:?}", pulse.age());
        // Flushed: it says so itself.
        pulse.beat("a", reading(11_000, 2, 0), ms(0));
        assert!(pulse.age() < ms(1));
        // Another life, which says it is old: it is not older than the last word of the one before.
        pulse.beat("b", reading(12_000, 2, 0), old());
        assert!((ms(990)..ms(1_010)).contains(&pulse.age()), "{:?}", pulse.age());
    }

    #[test]
    fn its_clock_is_known_to_half_a_round_trip() {
        let mut pulse = Pulse::default();
        assert_eq!(pulse.node_us(at(0)), None);
        pulse.beat("a", reading(1_000, 4, 0), old());
        let known = pulse.node_us(at(2_000)).unwrap_or(0);
        assert!(known.abs_diff(START_US + 2_000_000) <= 2_000, "{known}");
    }
}
