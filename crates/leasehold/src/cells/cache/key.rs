//! The names of a key: that of its value, and that of its loaders' lease.

use crate::cells::store::{Key, Kind};
use crate::error::{Error, Result};
use crate::name::Name;

/// The longest name of a cache, in bytes. The rest of a name is for its keys.
const NAME_BYTES_MAX: usize = 128;

/// The prefix of a lease's name, which keeps it apart from the user's locks.
const LEASE: &str = "cache:";

/// A key of a cache.
///
/// Its name is `CACHE/KEY`. If that is not a valid name (too long, not UTF-8, with braces or
/// control characters, with `.` or `..` between slashes) or KEY begins with `#`, the name is
/// `CACHE/#` and the SHA-1 of the key. The key is then stored beside the value, so that two keys
/// with the same hash do not share values.
#[derive(Debug)]
pub(super) struct CacheKey {
    pub(super) cell: Key,
    pub(super) lease: Name,
    /// The key, if the name does not contain it; else empty.
    pub(super) bytes: Vec<u8>,
}

/// Checks the name of a cache.
pub(super) fn checked(name: Name) -> Result<Name> {
    let refuse = |why: &str| Err(Error::invalid("name of a cache", name.as_str(), why));
    match name.as_str() {
        text if text.len() > NAME_BYTES_MAX => {
            refuse("a cache's name has at most 128 bytes, so that there is room for its keys")
        }
        text if text.contains('/') => refuse("a cache's name has no `/`: its keys stand behind one"),
        _ => Ok(name),
    }
}

impl CacheKey {
    pub(super) fn new(cache: &Name, key: &[u8]) -> Result<Self> {
        let plain = std::str::from_utf8(key).ok().filter(|text| !text.starts_with('#'));
        let plain = plain.and_then(|text| names(cache, text).ok());
        let (names, bytes) = match plain {
            Some(names) => (names, Vec::new()),
            None => {
                let hash = sha1_smol::Sha1::from(key).digest();
                (names(cache, &format!("#{hash}"))?, key.to_vec())
            }
        };
        let (name, lease) = names;
        Ok(CacheKey { cell: Key::new(Kind::Cached, name), lease, bytes })
    }
}

fn names(cache: &Name, key: &str) -> Result<(Name, Name)> {
    let lease = Name::new(format!("{LEASE}{cache}/{key}"))?;
    Ok((Name::new(&lease.as_str()[LEASE.len()..])?, lease))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own() {
        let cache = checked(Name::new("prices").unwrap()).unwrap();
        let long = vec![b'x'; 100_000];
        let keys: [&[u8]; 14] = [
            b"",
            b"42",
            b"a/b",
            b"a/../b",
            b"..",
            b"#",
            b"#42",
            b"a b",
            b"{a}",
            b"a\nb",
            b"\xff\xfe",
            &long,
            &long[1..],
            &long[..240],
        ];
        let made: Vec<CacheKey> = keys.iter().map(|key| CacheKey::new(&cache, key).unwrap()).collect();
        let names: HashSet<String> = made.iter().map(|key| key.cell.to_string()).collect();
        assert_eq!(names.len(), keys.len());
        for (made, key) in made.iter().zip(keys) {
            let name = made.cell.name().as_str();
            assert_eq!(made.lease.as_str(), format!("cache:{name}"));
            let is_plain = matches!(key, b"" | b"42" | b"a/b" | b"a b") || key.len() == 240;
            assert_eq!(name.starts_with("prices/#"), !is_plain, "{name}");
            assert_eq!(made.bytes, if is_plain { b"" } else { key }, "{name}");
        }
        assert_eq!(CacheKey::new(&cache, b"42").unwrap().cell.to_string(), "cached:prices/42");
    }

    #[test]
    fn a_name_that_leaves_no_room_for_keys_is_refused() {
        for bad in ["a/b", &"x".repeat(129)] {
            assert!(checked(Name::new(bad).unwrap()).is_err(), "{bad}");
        }
        let longest = checked(Name::new("x".repeat(128)).unwrap()).unwrap();
        assert!(CacheKey::new(&longest, &[0; 1_000]).is_ok());
    }
}
