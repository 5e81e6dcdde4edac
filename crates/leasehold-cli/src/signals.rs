//! Signals by their names.

use rustix::process::Signal;

const NAMES: &[(&str, Signal)] = &[
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("TERM", Signal::TERM),
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("WINCH", Signal::WINCH),
];

/// Parses `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    let numbered = || text.parse().ok().and_then(Signal::from_named_raw);
    named.or_else(numbered).ok_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        format!("write one of {}, or the number of a signal, 1 to 31", known.join(", "))
    })
}

/// Returns `SIGTERM`, or the number of a signal without a common name.
pub(crate) fn name(signal: Signal) -> String {
    let named = NAMES.iter().find(|(_, known)| *known == signal);
    named.map_or_else(|| format!("signal {}", signal.as_raw()), |(name, _)| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "term", "sigTerm", "15"] {
            assert_eq!(parse(text), Ok(Signal::TERM), "{text}");
        }
        assert_eq!(name(Signal::TERM), "SIGTERM");
        assert_eq!(parse("8").map(name), Ok("signal 8".to_owned()));
        for text in ["", "SIG", "0", "-9", "TERMINATE", "999", "1.5"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
