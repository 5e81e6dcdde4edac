//! `Token`: who asks. A secret part that proves it, and a label for people.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The label of a holder, for people: `host:pid` unless the user says otherwise.
///
/// Invariants, checked once, here:
/// - UTF-8, 1 to 128 bytes;
/// - no control characters, so that it can be printed to a terminal or a log as it is.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The most bytes a label may have.
    pub const BYTES_MAX: usize = 128;

    /// Checks the text and makes it a label.
    pub fn new(label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref();
        let why = if label.is_empty() {
            "a label has at least one character"
        } else if label.len() > Owner::BYTES_MAX {
            "a label has at most 128 bytes"
        } else if label.chars().any(char::is_control) {
            "a label has no control characters"
        } else {
            return Ok(Owner(label.into()));
        };
        Err(Error::invalid("owner label", label, why))
    }

    /// `host:pid` of this process.
    pub fn this_process() -> Self {
        let system = rustix::system::uname();
        let host: String =
            system.nodename().to_string_lossy().chars().filter(|c| !c.is_control()).take(64).collect();
        let host = if host.is_empty() { "localhost" } else { host.as_str() };
        Owner(format!("{host}:{}", std::process::id()).into())
    }

    /// The text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
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

/// The holder token of one attempt to get a lock: 32 hex digits, `@`, and the owner's label.
///
/// Invariants:
/// - the hex digits are 128 bits from the operating system's random source, fresh for each attempt;
/// - they are a capability: `Debug` and `Display` show the label only;
/// - once a release has been sent for a token, it is never used again.
///
/// The last one is why a token belongs to an *attempt* and not to a task: a late release of an old attempt
/// must not touch a newer grant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

/// Hex digits before the `@`.
const SECRET_DIGITS: usize = 32;

impl Token {
    /// A new token for an attempt of this owner.
    ///
    /// # Errors
    /// [`Error::System`] where the operating system gives no random bytes: then no lock is to be had, since
    /// a guessable token could be released by anybody.
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

    /// One of up to 256 tokens that come with this one: for claims that belong together, to a store that knows a token by what
    /// it claimed. Whoever knows one knows all.
    pub(crate) fn companion(&self, number: u8) -> Self {
        let (secret, rest) = self.0.split_at(SECRET_DIGITS);
        let (kept, last) = secret.split_at(SECRET_DIGITS - 2);
        let last = u8::from_str_radix(last, 16).unwrap_or(0) ^ number;
        Token(format!("{kept}{last:02x}{rest}").into())
    }

    /// Reads back what [`expose`](Token::expose) gave.
    pub fn parse(text: &str) -> Result<Self> {
        // The text is not shown: whoever mistypes a token still has most of a secret in it.
        let refuse = || Error::invalid("token", "(not shown)", "a token is 32 hex digits, `@` and a label");
        let (secret, label) = text.split_once('@').ok_or_else(refuse)?;
        if secret.len() != SECRET_DIGITS || !secret.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(refuse());
        }
        Owner::new(label)?;
        Ok(Token(text.into()))
    }

    /// The whole token, secret included, for a store to write down. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The label of the owner.
    pub fn owner(&self) -> Owner {
        Owner(self.label().into())
    }

    fn label(&self) -> &str {
        &self.0[SECRET_DIGITS + 1..]
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(…@{})", self.label())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
