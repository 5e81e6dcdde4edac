//! What was taken of rate limits, in the database: rows beside those of values.

use super::book::{Book, Outcome};
use super::place::refused;
use crate::cells::rate::decide::{Decided, There, decide};
use crate::cells::rate::{Limit, Taken};
use crate::ttl::Ttl;

impl Book<'_> {
    pub(super) fn take(&mut self, place: &str, limit: &Limit, weight: u32) -> Outcome<Taken> {
        let there = self.value(place)?;
        let there =
            there.as_ref().map(|(value, ends)| There { value, left: ends.map(|ends| ends.since(self.now)) });
        let decided = decide(limit, weight, there, self.now.as_ns() / 1_000);
        let Decided { taken, write } = decided.map_err(|_| {
            refused(format!("`{place}` is no rate limit; something else is kept under its name"))
        })?;
        if let Some((value, left)) = write {
            // After a reboot it gets the whole period again.
            self.set(
                place,
                &value,
                Some(self.now.plus(left)),
                Some(Ttl::from_ms(limit.period_us() / 1_000)),
            )?;
        }
        Ok(taken)
    }
}
