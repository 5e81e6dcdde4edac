//! Durations as people write them: `10`, `10s`, `500ms`, `1.5m`, `2h`, `1d`. A bare number is seconds, as for `timeout`
//! and `flock`.

use std::time::Duration;

const UNITS: &[(&str, f64)] =
    &[("ms", 0.001), ("s", 1.0), ("sec", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)];

/// Beyond this nobody waits, and arithmetic stays safe.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "" => Some(1.0),
        _ => UNITS.iter().find(|(name, _)| *name == unit.trim_start_matches(' ')).map(|(_, scale)| *scale),
    };
    let help = "write a number with ms, s, m, h or d, such as 30s or 1.5h";
    let seconds = match (number.parse::<f64>(), scale) {
        (Ok(number), Some(scale)) if !number.is_nan() => number * scale,
        _ => return Err(help.to_owned()),
    };
    if seconds > SECONDS_MAX {
        return Err("at most 366d".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The same for people to read: `12 s`, `3 min`.
pub(crate) fn short(duration: Duration) -> String {
    let ms = duration.as_millis();
    // To the nearest: nobody who asked for ten minutes wants to read nine.
    let rounded = |unit: u128| (ms + unit / 2) / unit;
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..9_950 => format!("{:.1} s", duration.as_secs_f64()),
        9_950..119_500 => format!("{} s", rounded(1_000)),
        119_500..7_170_000 => format!("{} min", rounded(60_000)),
        _ => format!("{} h", rounded(3_600_000)),
    }
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
            ("0.25", 250),
            ("30 s", 30_000),
            ("5min", 300_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "1x",
            "1s ",
            "1.2.3",
            "1e3",
            "inf",
            "nan",
            "999d",
            "٣",
            "1m30s",
            "99999999999999999999h",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
