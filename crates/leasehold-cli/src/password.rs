//! The password for a store, from a file or the environment: all users can read a command line.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leasehold::Password;

use crate::config;
use crate::exit::Failure;
use crate::input::{self, Pipes};
use crate::log;

pub(crate) const PASSWORD: &str = "LEASEHOLD_PASSWORD";

/// The variable with the path of the password file. The path is no secret, so commands inherit it.
pub(crate) const PASSWORD_FILE: &str = "LEASEHOLD_PASSWORD_FILE";

/// Reads the password from `--password-file`, else LEASEHOLD_PASSWORD_FILE, else
/// LEASEHOLD_PASSWORD. An empty variable counts as not set.
pub(crate) fn password(file: Option<&Path>) -> Result<Option<Password>, Failure> {
    if let Some(path) = file {
        return from_file(path).map(Some);
    }
    if let Some(path) = std::env::var_os(PASSWORD_FILE).filter(|path| !path.is_empty()) {
        return from_file(Path::new(&path))
            .map(Some)
            .map_err(|failure| Failure::configuration(format!("{PASSWORD_FILE}: {}", failure.message)));
    }
    Ok(config::variable(PASSWORD, "password")?.map(Password::from))
}

/// Reads the first line.
fn from_file(path: &Path) -> Result<Password, Failure> {
    let shown = path.display();
    let opened = input::open(path, Pipes::Read);
    let read = opened.and_then(|(file, about)| Ok((input::read(file)?, about)));
    let (text, about) = read.map_err(|error| {
        Failure::usage(format!(
            "the password could not be read from `{shown}`: {error}; name a file that has it in its first line"
        ))
    })?;
    let (mode, owner) = (about.mode() & 0o777, about.uid());
    if !config::is_trusted(owner) {
        log::warn(format_args!("`{shown}` belongs to user {owner}, who can read and change the password"));
    }
    if mode & 0o077 != 0 && about.is_file() {
        log::warn(format_args!("`{shown}` is open to other users (mode {mode:o}); `chmod 600` it"));
    }
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.into()),
        _ => Err(Failure::usage(format!("`{shown}` has no password in its first line"))),
    }
}

/// Returns whether a typed URL seems to contain a password.
pub(crate) fn is_in(url: &str) -> bool {
    let has_one = |place: &str| place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    let (scheme, places) = url.split_once(':').unwrap_or_default();
    let is_there = match is_quorum(scheme) {
        // Several servers, each with its own user.
        true => {
            places.split(',').any(|place| has_one(place.split_once("//").map_or(place, |(_, place)| place)))
        }
        false => places.strip_prefix("//").is_some_and(has_one),
    };
    is_there || url.contains("pass=")
}

/// Returns whether URLs of this scheme list several servers, separated by commas.
fn is_quorum(scheme: &str) -> bool {
    ["redlock", "redlocks"].iter().any(|quorum| scheme.eq_ignore_ascii_case(quorum))
}

/// Returns the URL without its password, for the environment of a command: a `leasehold` in that
/// command uses the same store. `None` if it is uncertain which part is the password.
pub(crate) fn removed_from(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':')?;
    if scheme.eq_ignore_ascii_case("file") {
        return Some(url.to_owned());
    }
    let (address, query) = rest.split_once('?').map_or((rest, None), |(before, query)| (before, Some(query)));
    // Elsewhere a comma can be part of the password.
    let nodes: Vec<&str> = if is_quorum(scheme) { address.split(',').collect() } else { vec![address] };
    let nodes: Option<Vec<String>> = nodes.into_iter().map(without_userinfo_password).collect();
    let place = nodes?.join(",");
    let Some(query) = query else { return Some(format!("{scheme}:{place}")) };
    // A `?` in a password ends the address early: the rest of the password and the host follow it.
    let is_certain = |pair: &&str| !pair.split('=').next().unwrap_or("").contains(['%', '@', '+']);
    if !query.split('&').all(|pair| is_certain(&pair)) || (query.contains('@') && !address.contains('@')) {
        return None;
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("pass=")).collect();
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    Some(format!("{scheme}:{place}{query}"))
}

/// One node: `USER:PASSWORD@HOST…`, perhaps after `//` or `SCHEME://`.
fn without_userinfo_password(node: &str) -> Option<String> {
    let (before, authority) = match node.find("//") {
        Some(at) => node.split_at(at + 2),
        None => ("", node),
    };
    let end = authority.find('/').unwrap_or(authority.len());
    let (authority, path) = authority.split_at(end);
    if path.contains('@') || node.contains('#') {
        return None;
    }
    let Some((user, host)) = authority.rsplit_once('@') else {
        // `USER:PASS`, the start of a password with a comma, has no port after its colon.
        let port = authority.rsplit(']').next().and_then(|host| host.rsplit_once(':')).map(|(_, port)| port);
        return port.is_none_or(|port| port.parse::<u16>().is_ok()).then(|| node.to_owned());
    };
    let user = user.split(':').next().filter(|user| !user.is_empty());
    Some(format!("{before}{}{host}{path}", user.map_or_else(String::new, |user| format!("{user}@"))))
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

    #[test]
    fn the_password_is_removed_and_the_rest_of_the_url_is_kept() {
        for (url, kept) in [
            ("file:/a?b@c", "file:/a?b@c"),
            ("redis://h:6379/", "redis://h:6379/"),
            ("redis://:x@h/", "redis://h/"),
            ("redis://:a,b@h/", "redis://h/"),
            ("redis://u:a,b,@h:1/2?prefix=a,b", "redis://u@h:1/2?prefix=a,b"),
            ("redis://[::1]:6379/", "redis://[::1]:6379/"),
            ("redlock:[::1]:1,[::1],redis+unix:///s", "redlock:[::1]:1,[::1],redis+unix:///s"),
            ("redis://user:x@h:1/2?prefix=a:", "redis://user@h:1/2?prefix=a:"),
            ("redis://user:x@h/?prefix=a@b", "redis://user@h/?prefix=a@b"),
            ("rediss://u:x@y@h/?ca=/f", "rediss://u@h/?ca=/f"),
            ("redis+unix:///s?pass=x&user=u", "redis+unix:///s?user=u"),
            ("redis+unix:///s?pass=x", "redis+unix:///s"),
            ("redlock:u:x@a,b,c?skew=9", "redlock:u@a,b,c?skew=9"),
            ("redlock://a,b,:x@c", "redlock://a,b,c"),
            ("redlocks:a,redis://u:x@b:1/3,c", "redlocks:a,redis://u@b:1/3,c"),
        ] {
            assert_eq!(removed_from(url).as_deref(), Some(kept), "{url}");
        }
        for url in [
            "secret",
            "redis://u:a/b@h/",
            "redis://u:a?b@h/",
            "redis://u:a#b@h/",
            "redis+unix:///s?p%61ss=x",
            "redlock:a,b,u:x/y@c",
            "redlock:a,b,u:x,y@c",
            "Redlocks://a,b,:x,y@c",
        ] {
            assert_eq!(removed_from(url), None, "{url}");
        }
    }
}
