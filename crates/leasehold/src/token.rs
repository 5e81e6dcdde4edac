//! `Token`, the identity of a holder: a secret part as proof, and a label for people.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::name::{forges_output, write_escaped};

/// The label of a holder, for people; `host:pid` by default. Cloning is cheap.
///
/// Invariants:
/// - UTF-8, 1 to 128 bytes;
/// - no control characters, and none that change the direction of text, so that it is safe to
///   print. A label from a store with such characters is shown escaped, and may be longer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The most bytes in a label.
    pub const BYTES_MAX: usize = 128;

    /// Checks the text and makes it a label.
    pub fn new(label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref();
        let why = if label.is_empty() {
            "a label has at least one character"
        } else if label.len() > Owner::BYTES_MAX {
            "a label has at most 128 bytes"
        } else if label.chars().any(forges_output) {
            "a label has no control characters, nor any that change the direction of text"
        } else {
            return Ok(Owner(label.into()));
        };
        Err(Error::invalid("owner label", label, why))
    }

    /// Returns `host:pid` of this process.
    pub fn this_process() -> Self {
        Owner(format!("{}:{}", host(), std::process::id()).into())
    }

    /// Returns `host:pid (user: command)` for a process on this machine. Long text is cut, and
    /// characters that a label cannot have are replaced. [`process`](Owner::process) parses it.
    pub fn of_process(pid: u32, user: &str, command: &str) -> Self {
        const USER_MAX: usize = 32;
        let head = host() + &format!(":{pid}");
        // The first `: ` ends the user.
        let user = cut(&printable(user).replace(':', "_"), USER_MAX);
        let around = " (".len() + user.len() + ": ".len() + ")".len();
        match Owner::BYTES_MAX.checked_sub(head.len() + around).filter(|room| *room > "…".len()) {
            Some(room) => Owner(format!("{head} ({user}: {})", cut(&printable(command), room)).into()),
            None => Owner(head.into()),
        }
    }

    /// Returns the process that the label names, if [`this_process`](Owner::this_process) or
    /// [`of_process`](Owner::of_process) may have made it.
    pub fn process(&self) -> Option<OwnerProcess> {
        let (head, details) = match self.0.split_once(" (") {
            Some((head, rest)) => (head, Some(rest.strip_suffix(')')?.split_once(": ")?)),
            None => (&*self.0, None),
        };
        let (host, pid) = head.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
        let pid = pid.parse().ok().filter(|_| pid.bytes().all(|byte| byte.is_ascii_digit()))?;
        let (user, command) = details.unzip();
        Some(OwnerProcess {
            host: host.to_owned(),
            pid,
            user: user.map(str::to_owned),
            command: command.map(str::to_owned),
        })
    }

    /// Returns the text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A process as named by a label; see [`Owner::process`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerProcess {
    /// The host name of its machine.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// The user that runs it.
    pub user: Option<String>,
    /// Its command, without arguments.
    pub command: Option<String>,
}

fn host() -> String {
    let system = rustix::system::uname();
    let host: String =
        system.nodename().to_string_lossy().chars().filter(|c| !forges_output(*c)).take(64).collect();
    if host.is_empty() { "localhost".to_owned() } else { host }
}

/// Replaces each character that a label cannot have with `?`.
fn printable(text: &str) -> String {
    text.chars().map(|c| if forges_output(c) { '?' } else { c }).collect()
}

/// Cuts the text to at most `bytes_max` bytes, and marks a cut with `…`.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max - "…".len()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}

/// The token of one attempt to acquire a lock: 32 hex digits, `@`, and the owner's label.
///
/// Invariants:
/// - the hex digits are 128 bits from the operating system's random source, fresh for each attempt;
/// - they are a capability: `Debug` and `Display` show the label only;
/// - a token is never used again after a release was sent for it. So it belongs to an *attempt*,
///   not to a task: a late release of an old attempt must not touch a newer grant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

/// The number of hex digits before the `@`.
const SECRET_DIGITS: usize = 32;

impl Token {
    /// Returns a new token for an attempt of this owner.
    ///
    /// # Errors
    /// [`Error::System`] without random bytes: any client could release a guessable token.
    pub fn fresh(owner: &Owner) -> Result<Self> {
        let mut secret = [0u8; SECRET_DIGITS / 2];
        getrandom::fill(&mut secret).map_err(|error| Error::System {
            what: "random bytes from the operating system",
            why: error.to_string(),
        })?;
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(SECRET_DIGITS + 1 + owner.as_str().len());
        for byte in secret {
            text.push(DIGITS[usize::from(byte >> 4)] as char);
            text.push(DIGITS[usize::from(byte & 15)] as char);
        }
        text.push('@');
        text.push_str(owner.as_str());
        Ok(Token(text.into()))
    }

    /// Returns one of up to 256 tokens derived from this one, for claims that belong together on a
    /// store that identifies a claim by its token. Each of them reveals all others.
    pub(crate) fn companion(&self, number: u8) -> Self {
        let (secret, rest) = self.0.split_at(SECRET_DIGITS);
        let (kept, last) = secret.split_at(SECRET_DIGITS - 2);
        let last = u8::from_str_radix(last, 16).unwrap_or(0) ^ number;
        Token(format!("{kept}{last:02x}{rest}").into())
    }

    /// Parses the text that [`expose`](Token::expose) returned.
    pub fn parse(text: &str) -> Result<Self> {
        // The text is not shown: a mistyped token still has most of a secret in it.
        let refuse = || Error::invalid("token", "(not shown)", "a token is 32 hex digits, `@` and a label");
        let (secret, label) = text.split_once('@').ok_or_else(refuse)?;
        if secret.len() != SECRET_DIGITS || !secret.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(refuse());
        }
        // A label that could forge output is escaped when shown: the token must stay as it is.
        if label.is_empty() || label.len() > Owner::BYTES_MAX || label.chars().any(char::is_control) {
            return Err(refuse());
        }
        Ok(Token(text.into()))
    }

    /// Returns the whole token, secret included, for a store to save. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the label of the owner.
    pub fn owner(&self) -> Owner {
        let mut shown = String::new();
        let _ = write_escaped(&mut shown, self.label());
        Owner(shown.into())
    }

    fn label(&self) -> &str {
        &self.0[SECRET_DIGITS + 1..]
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(…@{self})")
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_process_is_read_back() {
        let long = "x".repeat(300);
        for (user, command, read_user, read_command) in [
            ("alice", "backup.sh", "alice", "backup.sh"),
            ("alice", "a (b): c)", "alice", "a (b): c)"),
            ("a:b", "two words", "a_b", "two words"),
            ("", "", "", ""),
            ("anna\n", "tab\tand\u{202e}turn", "anna?", "tab?and?turn"),
            ("zoë", &long, "zoë", "x…"),
            (&long, "cut", "x…", "cut"),
        ] {
            let label = Owner::of_process(4_711, user, command);
            assert!(label.as_str().len() <= Owner::BYTES_MAX, "{label}");
            assert_eq!(Owner::new(label.as_str()).ok().as_ref(), Some(&label), "it is a valid label");
            let process = label.process().unwrap_or_else(|| panic!("{label} is not read"));
            assert_eq!((process.host, process.pid), (host(), 4_711));
            let same = |read: Option<String>, expected: &str| match expected.strip_suffix('…') {
                Some(start) => read.is_some_and(|it| it.starts_with(start) && it.ends_with('…')),
                None => read.as_deref() == Some(expected),
            };
            assert!(same(process.user, read_user) && same(process.command, read_command), "{label}");
        }
        let this = Owner::this_process().process();
        assert_eq!(this.map(|it| (it.pid, it.user)), Some((std::process::id(), None)));
    }

    #[test]
    fn free_text_names_no_process() {
        for label in [
            "anna",
            "anna: at work",
            "web1:",
            ":12",
            "web1:+12",
            "web1:12 (anna)",
            "web1:12 (a: b",
            "x (a: b)",
        ] {
            assert_eq!(Owner::new(label).ok().and_then(|label| label.process()), None, "{label}");
        }
    }
}
