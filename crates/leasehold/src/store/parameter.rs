//! Parameters of a store URL (`?NAME=VALUE`) that the store cannot use.

use crate::error::Error;

/// The error for a parameter that the store does not have, or that has no value. It names the known ones, and the closest of
/// them first.
pub(crate) fn unknown(name: &str, known: &[&str]) -> Error {
    // After a `?` inside a password comes the rest of the password: only a plain word is shown.
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

/// How many characters have to be inserted, removed or replaced to make one text the other (Levenshtein).
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
