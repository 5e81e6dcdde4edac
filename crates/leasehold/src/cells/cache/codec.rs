//! How values become bytes and back; and where random numbers come from.

use std::borrow::Cow;

#[cfg(feature = "json")]
use crate::error::Error;
use crate::error::Result;

/// Two functions, so that bytes and every type can have their own.
pub(super) struct Codec<T> {
    pub(super) encode: fn(&T) -> Result<Cow<'_, [u8]>>,
    /// Nothing where these bytes are no such value.
    pub(super) decode: fn(Vec<u8>) -> Option<T>,
}

impl Codec<Vec<u8>> {
    pub(super) fn bytes() -> Self {
        Codec { encode: |value| Ok(Cow::Borrowed(value)), decode: Some }
    }
}

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Codec<T> {
    pub(super) fn json() -> Self {
        Codec {
            encode: |value| {
                let json = serde_json::to_vec(value);
                json.map(Cow::Owned).map_err(|error| {
                    Error::invalid(
                        "value to be cached",
                        std::any::type_name::<T>(),
                        format!("as JSON: {error}"),
                    )
                })
            },
            decode: |bytes| serde_json::from_slice(&bytes).ok(),
        }
    }
}

impl<T> Clone for Codec<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Codec<T> {}

/// Evenly from what lies above 0 and is at most 1.
pub(super) fn drawn() -> f64 {
    let mut bytes = [0; 8];
    // Without random bytes nothing is loaded early, and everything in time.
    match getrandom::fill(&mut bytes) {
        Ok(()) => ((u64::from_ne_bytes(bytes) >> 11) + 1) as f64 / (1u64 << 53) as f64,
        Err(_) => 1.0,
    }
}
