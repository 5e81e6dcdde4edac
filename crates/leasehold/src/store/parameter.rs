//! Parameters of a store URL (`?NAME=VALUE`) that the store cannot use.

use crate::error::Error;

/// The error for an unknown parameter, or one without a value, with the known ones and the closest.
pub(crate) fn unknown(name: &str, known: &[&str]) -> Error {
    // After a `?` in a password comes the rest of the password, so only a plain word is shown.
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    let closest = known.iter().map(|known| (edit_distance(name, known), known)).min();
    let hint = match closest {
        Some((0, known)) => {
            return Error::invalid("parameter in the store URL", name, format!("write {known}=VALUE"));
        }
        Some((0..=2, closest)) if is_plain => format!("did you mean `{closest}`? It"),
        _ => "there is no such parameter; it".to_owned(),
    };
    let why = format!("{hint} is one of {}", known.join(", "));
    Error::invalid("parameter in the store URL", if is_plain { name } else { "…" }, why)
}

/// The Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_known_parameter_is_suggested_and_part_of_a_password_is_not_shown() {
        let said = |name: &str| unknown(name, &["prefix", "timeout", "ca"]).to_string();
        assert!(said("prefx").contains("`prefx`: did you mean `prefix`? It is one of prefix, timeout, ca"));
        assert!(
            said("frobnicate").contains("`frobnicate`: there is no such parameter; it is one of prefix, ")
        );
        assert!(said("ca").contains("`ca`: write ca=VALUE"));
        assert!(!said("hunter2@host/").contains("hunter2"));
        for (a, b, distance) in [("", "", 0), ("", "ab", 2), ("prefx", "prefix", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!((edit_distance(a, b), edit_distance(b, a)), (distance, distance), "{a} {b}");
        }
    }
}
