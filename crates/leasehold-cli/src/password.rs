//! Where the password for a store comes from, if not from its URL: never from the command line, which everybody can read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leasehold::Password;

use crate::exit::Failure;
use crate::voice::Voice;

pub(crate) const PASSWORD: &str = "LEASEHOLD_PASSWORD";

/// More than this is no password.
const BYTES_MAX: u64 = 64 * 1024;

/// From the file that was named; else from the environment, where an empty one is none.
pub(crate) fn password(file: Option<&Path>, voice: Voice) -> Result<Option<Password>, Failure> {
    if let Some(path) = file {
        return from_file(path, voice).map(Some);
    }
    match std::env::var(PASSWORD) {
        Ok(password) if !password.is_empty() => Ok(Some(password.into())),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::configuration(format!("{PASSWORD} is not UTF-8; write the store's password in it")))
        }
    }
}

/// Its first line.
fn from_file(path: &Path, voice: Voice) -> Result<Password, Failure> {
    let shown = path.display();
    let mut text = String::new();
    let read = || -> std::io::Result<u32> {
        let file = File::open(path)?;
        let mode = file.metadata()?.mode();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(mode & 0o777)
    };
    let mode = { read }().map_err(|error| {
        Failure::usage(format!(
            "the password could not be read from `{shown}`: {error}; name a file that has it in its first line"
        ))
    })?;
    if mode & 0o077 != 0 {
        voice.warn(format_args!("`{shown}` is open to other users (mode {mode:o}); `chmod 600` it"));
    }
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.into()),
        _ => Err(Failure::usage(format!("`{shown}` has no password in its first line"))),
    }
}

/// Whether a URL that was typed has a password in it, by its looks.
pub(crate) fn is_in(url: &str) -> bool {
    let has_one = |place: &str| place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    let (scheme, places) = url.split_once(':').unwrap_or_default();
    let is_there = match scheme.to_ascii_lowercase().as_str() {
        // Several servers, each with a user of its own.
        "redlock" | "redlocks" => {
            places.split(',').any(|place| has_one(place.split_once("//").map_or(place, |(_, place)| place)))
        }
        _ => places.strip_prefix("//").is_some_and(has_one),
    };
    is_there || url.contains("pass=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_seen() {
        for url in [
            "redis://:x@h/",
            "redis://user:x@h:1/0",
            "redis+unix:///s?pass=x",
            "redis://u:a/b@h/",
            "redlock:u:x@a,b,c",
            "redlock://a,b,u:x@c",
            "redlocks:a,redis://u:x@b,c",
        ] {
            assert!(is_in(url), "{url}");
        }
        for url in [
            "redis://h:6379/",
            "redis://user@h:6379/",
            "file:/a:b",
            "redis+unix:///s",
            "redlock:a:1,b:2,c:3",
            "redlock:redis://a:1,u@b:2,c",
            "",
        ] {
            assert!(!is_in(url), "{url}");
        }
    }
}
