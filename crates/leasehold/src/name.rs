//! `Name`, which identifies the protected resource.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name of a protected resource, such as `orders:42`. Cloning is cheap.
///
/// Invariants:
/// - UTF-8, 1 to 255 bytes;
/// - no control characters, and none that change the direction or line of text (they forge output);
/// - no braces (the hash tags of Redis Cluster);
/// - no `.` or `..` between slashes (a name may become a path).
///
/// ```
/// use leasehold::Name;
///
/// let name: Name = "orders:42".parse()?;
/// assert_eq!(name.as_str(), "orders:42");
/// assert!(Name::new("").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::derived_hash_with_manual_eq)]
pub struct Name(Arc<str>);

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        // Usually it is the same allocation.
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Name {
    /// The most bytes in a name.
    pub const BYTES_MAX: usize = 255;

    /// Checks the text and makes it a name.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        match fault(text) {
            None => Ok(Name(text.into())),
            Some(why) => Err(Error::invalid("name", text, why)),
        }
    }

    /// Checks bytes from outside, which need not be UTF-8, and makes them a name.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Name::new(text),
            Err(_) => Err(Error::invalid("name", String::from_utf8_lossy(bytes), "names are UTF-8")),
        }
    }

    /// Makes a name of text that a store kept. It may be older than the rule against characters
    /// that change the direction of text: such a lock must still be listed until it ends.
    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn stored(text: &str) -> Result<Self> {
        let plain: String = text.chars().filter(|c| c.is_control() || !forges_output(*c)).collect();
        match fault(&plain) {
            Some(why) if !plain.is_empty() || text.is_empty() => Err(Error::invalid("name", text, why)),
            _ => Ok(Name(text.into())),
        }
    }

    /// Returns the text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether a terminal or a log shows something else than this character: control
/// characters, characters that embed, override or isolate a direction of text ("Trojan Source"),
/// and separators of lines and paragraphs.
pub(crate) fn forges_output(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Writes text of other clients with such characters escaped, as `\u{202e}`.
pub(crate) fn write_escaped(f: &mut impl fmt::Write, text: &str) -> fmt::Result {
    if !text.chars().any(forges_output) {
        return f.write_str(text);
    }
    text.chars().try_for_each(|c| match forges_output(c) {
        true => write!(f, "{}", c.escape_unicode()),
        false => f.write_char(c),
    })
}

fn fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("a name has at least one character");
    }
    if text.len() > Name::BYTES_MAX {
        return Some("a name has at most 255 bytes; hash the longer part");
    }
    if text.chars().any(forges_output) {
        return Some("a name has no control characters, nor any that change the direction of text");
    }
    if text.contains(['{', '}']) {
        return Some("a name has no braces; they mean something to Redis Cluster");
    }
    if text.contains('/') && text.split('/').any(|part| part == "." || part == "..") {
        return Some("`.` and `..` cannot stand between slashes; a name may become a path");
    }
    None
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Name::new(text)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// A value that can become a name: text, which is checked when the lock is acquired, or a [`Name`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no name for a lock",
    note = "pass a &str, a String or a Name"
)]
pub trait IntoName {
    /// Returns the name, or the fault in it.
    fn into_name(self) -> Result<Name>;
}

impl IntoName for Name {
    fn into_name(self) -> Result<Name> {
        Ok(self)
    }
}

impl IntoName for &Name {
    fn into_name(self) -> Result<Name> {
        Ok(self.clone())
    }
}

macro_rules! into_name_by_check {
    ($($text:ty),*) => {
        $(impl IntoName for $text {
            fn into_name(self) -> Result<Name> {
                Name::new(self)
            }
        })*
    };
}

into_name_by_check!(&str, &&str, String, &String, Cow<'_, str>);
