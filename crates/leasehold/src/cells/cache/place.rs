//! Where a key of a cache is: the name of its value, and the name its loaders take turns under.

use crate::cells::store::{Key, Kind};
use crate::error::{Error, Result};
use crate::name::Name;

/// The most bytes that the name of a cache may have: what is left is for its keys.
const NAME_BYTES_MAX: usize = 128;

/// What stands before a place in the name of a lease, so that no lock of the user's is called the same.
const LEASE: &str = "cache:";

/// The place of one key.
///
/// It is called `CACHE/KEY`. What would be no name so (longer than a name, not UTF-8, with braces or control characters, `.` or `..`
/// between slashes, or beginning as this does) is called `CACHE/#` and the key's SHA-1, and the key itself stands beside the
/// value: two keys with one hash do not see each other's values.
#[derive(Debug)]
pub(super) struct Place {
    /// Where the value is.
    pub(super) cell: Key,
    /// What is held to load it.
    pub(super) lease: Name,
    /// The key, where the name does not say it.
    pub(super) key: Vec<u8>,
}

/// Refuses what cannot be the name of a cache.
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

impl Place {
    pub(super) fn new(cache: &Name, key: &[u8]) -> Result<Self> {
        let plain = std::str::from_utf8(key).ok().filter(|text| !text.starts_with('#'));
        let plain = plain.and_then(|text| names(cache, text).ok());
        let (names, key) = match plain {
            Some(names) => (names, Vec::new()),
            None => {
                let hash = sha1_smol::Sha1::from(key).digest();
                (names(cache, &format!("#{hash}"))?, key.to_vec())
            }
        };
        let (name, lease) = names;
        Ok(Place { cell: Key::new(Kind::Cached, name), lease, key })
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
    fn every_key_has_a_place_of_its_own() {
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
        let places: Vec<Place> = keys.iter().map(|key| Place::new(&cache, key).unwrap()).collect();
        let names: HashSet<String> = places.iter().map(|place| place.cell.to_string()).collect();
        assert_eq!(names.len(), keys.len());
        for (place, key) in places.iter().zip(keys) {
            let name = place.cell.name().as_str();
            assert_eq!(place.lease.as_str(), format!("cache:{name}"));
            let is_plain = matches!(key, b"" | b"42" | b"a/b" | b"a b") || key.len() == 240;
            assert_eq!(name.starts_with("prices/#"), !is_plain, "{name}");
            assert_eq!(place.key, if is_plain { b"" } else { key }, "{name}");
        }
        assert_eq!(Place::new(&cache, b"42").unwrap().cell.to_string(), "cached:prices/42");
    }

    #[test]
    fn caches_whose_keys_could_be_taken_for_anothers_are_refused() {
        for bad in ["a/b", &"x".repeat(129)] {
            assert!(checked(Name::new(bad).unwrap()).is_err(), "{bad}");
        }
        let longest = checked(Name::new("x".repeat(128)).unwrap()).unwrap();
        assert!(Place::new(&longest, &[0; 1_000]).is_ok());
    }
}
