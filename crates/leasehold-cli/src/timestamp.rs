//! Points in time for people and machines: RFC 3339, in UTC, by the clock of this machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, with milliseconds: `2026-11-18T07:05:09.042Z`.
pub(crate) fn now() -> String {
    let now = since_1970();
    format!("{}.{:03}Z", seconds_text(now.as_secs()), now.subsec_millis())
}

/// The time before now, with seconds: `2026-11-18T07:05:09Z`.
pub(crate) fn ago(duration: Duration) -> String {
    of(SystemTime::now().checked_sub(duration))
}

pub(crate) fn after(duration: Duration) -> String {
    of(SystemTime::now().checked_add(duration))
}

pub(crate) fn from_ms(ms: u64) -> String {
    of(UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
}

fn of(time: Option<SystemTime>) -> String {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    seconds_text(since.as_secs()) + "Z"
}

pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn seconds_text(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a number of days since 1970-01-01.
///
/// Counts from March, so that the leap day ends its year (Howard Hinnant's "civil_from_days").
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_since_1970_become_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (86_399, "1970-01-01T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_709_164_800, "2024-02-29T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(seconds_text(seconds), text);
        }
    }
}
