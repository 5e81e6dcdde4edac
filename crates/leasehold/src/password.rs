//! `Password`, which admits a client to a store and is never shown.

use std::fmt;

/// The password of a store. It has no `Display`, and its `Debug` does not show it.
///
/// ```
/// let password = leasehold::Password::from("open sesame");
/// assert_eq!(format!("{password:?}"), "Password(…)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    #[cfg(all(feature = "redis", not(shuttle)))]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Password(text)
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Password(text.to_owned())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}
