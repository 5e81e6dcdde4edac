//! The encoding of values as the bytes that a store keeps.

use std::borrow::Cow;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

#[cfg(feature = "json")]
use crate::error::Error;
use crate::error::Result;

/// The encoding of one type.
pub(super) struct Codec<T> {
    pub(super) encode: fn(&T) -> Result<Cow<'_, [u8]>>,
    /// Owned bytes are not copied.
    pub(super) decode: fn(Cow<'_, [u8]>) -> Result<T>,
    /// Compares decoded values: the bytes of equal JSON may differ.
    pub(super) is_equal: fn(&[u8], &T) -> bool,
}

impl Codec<Vec<u8>> {
    pub(super) fn bytes() -> Self {
        Codec {
            encode: |value| Ok(Cow::Borrowed(value)),
            decode: |bytes| Ok(bytes.into_owned()),
            is_equal: |bytes, value| bytes == value,
        }
    }
}

#[cfg(feature = "json")]
impl<T: Serialize + DeserializeOwned> Codec<T> {
    pub(super) fn json() -> Self {
        Codec {
            encode: |value| {
                let why = |error: serde_json::Error| format!("it cannot be written as JSON: {error}");
                let json = serde_json::to_vec(value);
                json.map(Cow::Owned).map_err(|error| Error::invalid("value", "…", why(error)))
            },
            // The message of serde is not used: it may contain the value.
            decode: |bytes| {
                serde_json::from_slice(&bytes).map_err(|error| {
                    let what = if error.is_data() { "JSON of another form" } else { "no JSON" };
                    let why = format!(
                        "what is kept under its name is {what} (line {}, column {}); remove that, or choose another name",
                        error.line(),
                        error.column()
                    );
                    Error::invalid("cell", "…", why)
                })
            },
            is_equal: |bytes, value| {
                let kept: Option<serde_json::Value> = serde_json::from_slice(bytes).ok();
                kept.is_some() && kept == serde_json::to_value(value).ok()
            },
        }
    }
}

impl<T> Clone for Codec<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Codec<T> {}
