//! Durations of the command line: `10` (seconds, as for `timeout`), `500ms`, `1.5m`, `1h30m`, `1w`.

use std::time::Duration;

/// The units and their length in milliseconds, longest first.
const UNITS: &[(&[&str], f64)] = &[
    (&["w"], 604_800_000.0),
    (&["d"], 86_400_000.0),
    (&["h"], 3_600_000.0),
    (&["m", "min"], 60_000.0),
    (&["s", "sec"], 1_000.0),
    (&["ms"], 1.0),
];

/// Longer durations have no use, and arithmetic stays safe below this.
const MS_MAX: f64 = 366.0 * 86_400_000.0;

const HELP: &str = "write a number with ms, s, m, h, d or w, such as 30s, 1.5h or 1h30m";

/// Parses one or more numbers with their units, the longest unit first.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let (mut rest, mut sum_ms) = (text, 0.0);
    // The previous unit, as an index into `UNITS`.
    let mut before: Option<usize> = None;
    loop {
        let (number, after) = split_at_first(rest, |c| !c.is_ascii_digit() && c != '.');
        let (unit, after) = split_at_first(after.trim_start_matches(' '), |c| !c.is_ascii_alphabetic());
        let amount = number.parse::<f64>().ok().filter(|_| !text.ends_with(' '));
        let Some(amount) = amount else { return Err(HELP.to_owned()) };
        let scale_ms = match UNITS.iter().position(|(names, _)| names.contains(&unit)) {
            Some(at) if before.is_none_or(|before| before < at) => {
                before = Some(at);
                UNITS[at].1
            }
            Some(_) => {
                return Err(format!("write each unit once and longer units first: `{unit}` is out of order"));
            }
            None if !unit.is_empty() => return Err(format!("there is no unit `{unit}`; {HELP}")),
            None if !after.is_empty() => return Err(HELP.to_owned()),
            None if before.is_some() => return Err(format!("`{number}` at the end has no unit; {HELP}")),
            None => 1_000.0,
        };
        sum_ms += amount * scale_ms;
        if after.is_empty() {
            break;
        }
        if number.contains('.') {
            return Err("only the last number can have a fraction".to_owned());
        }
        rest = after.trim_start_matches(' ');
    }
    if sum_ms > MS_MAX {
        return Err("at most 366d".to_owned());
    }
    Ok(Duration::from_secs_f64(sum_ms / 1_000.0))
}

fn split_at_first(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

pub(crate) fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a duration as in the errors of the library: `12 s`, `3 min`.
pub(crate) fn short(duration: Duration) -> String {
    leasehold::Short(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_as_people_say_them() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (9_949, "9.9 s"),
            (9_999, "10 s"),
            (29_999, "30 s"),
            (119_499, "119 s"),
            (119_999, "2 min"),
            (599_999, "10 min"),
            (7_169_999, "119 min"),
            (7_199_999, "2 h"),
        ] {
            assert_eq!(short(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [
            ("0", 0),
            ("10", 10_000),
            ("10s", 10_000),
            ("500ms", 500),
            ("1.5m", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1w", 604_800_000),
            ("0.25", 250),
            ("30 s", 30_000),
            ("5min", 300_000),
            ("1h30m", 5_400_000),
            ("1h30min", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1m30s", 90_000),
            ("1d12h", 129_600_000),
            ("1w2d3h4m5s6ms", 788_645_006),
            ("1h0.5m", 3_630_000),
            ("1.s", 1_000),
            ("366d", 31_622_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn a_duration_that_cannot_be_read_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "write a number"),
            (".", "write a number"),
            ("s", "write a number"),
            ("-1", "write a number"),
            ("1.2.3", "write a number"),
            ("inf", "write a number"),
            ("nan", "write a number"),
            ("٣", "write a number"),
            ("1s ", "write a number"),
            ("1 ", "write a number"),
            ("1,5s", "write a number"),
            ("1x", "there is no unit `x`"),
            ("1e3", "there is no unit `e`"),
            ("1M", "there is no unit `M`"),
            ("1h5x", "there is no unit `x`"),
            ("1h30", "`30` at the end has no unit"),
            ("30m1h", "`h` is out of order"),
            ("1m1m", "`m` is out of order"),
            ("1m1min", "`min` is out of order"),
            ("1.5h30m", "only the last number"),
            ("999d", "at most 366d"),
            ("53w", "at most 366d"),
            ("365d25h", "at most 366d"),
            ("99999999999999999999h", "at most 366d"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
