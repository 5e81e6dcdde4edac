//! What a store URL says beside where the server is.

use std::time::Duration;

use super::choose::Scripts;
use super::keys::PREFIX;
use super::manners::Manners;
use super::tls;
use crate::error::{Error, Result};
use crate::name::forges_output;
use crate::store::parameter;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What the URL says beside where the server is.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    pub(super) scripts: Scripts,
    pub(super) files: tls::Files,
    /// After how many releases others get their chance; 0 for never.
    pub(super) yield_every: u64,
}

const KNOWN: [&str; 7] = ["prefix", "timeout", "scripts", "yield_every", "ca", "cert", "key"];

/// What the client library reads from the URL of a Unix socket, which has no other place for it.
const KNOWN_OF_SOCKETS: [&str; 3] = ["db", "user", "pass"];

/// Takes what is ours out of the URL.
pub(super) fn settings(url: &str) -> Result<(String, Settings)> {
    tls::refuse_fragment(url)?;
    let mut settings = Settings {
        prefix: PREFIX.to_owned(),
        timeout: TIMEOUT,
        scripts: Scripts::default(),
        files: tls::Files::default(),
        yield_every: 0,
    };
    let Some((place, query)) = url.split_once('?') else { return Ok((url.to_owned(), settings)) };
    let mut others = Vec::new();
    let is_socket =
        place.split(':').next().is_some_and(|scheme| scheme.to_ascii_lowercase().ends_with("unix"));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("prefix", prefix)) => {
                if prefix.chars().any(|c| forges_output(c) || matches!(c, '{' | '}' | '%')) {
                    let why = "a prefix has no braces, percent signs or control characters";
                    return Err(Error::invalid("prefix in the store URL", prefix, why));
                }
                settings.prefix = prefix.to_owned();
            }
            Some(("timeout", ms)) => match ms.parse() {
                Ok(ms @ 1..=60_000) => settings.timeout = Duration::from_millis(ms),
                _ => {
                    return Err(Error::invalid(
                        "timeout in the store URL",
                        ms,
                        "write milliseconds, 1 to 60000",
                    ));
                }
            },
            Some(("scripts", word)) => settings.scripts = Scripts::parse(word)?,
            Some(("yield_every", count)) => settings.yield_every = Manners::parsed(count)?,
            Some(("ca", file)) => settings.files.ca = Some(file.into()),
            Some(("cert", file)) => settings.files.cert = Some(file.into()),
            Some(("key", file)) => settings.files.key = Some(file.into()),
            Some((name, _)) if is_socket && KNOWN_OF_SOCKETS.contains(&name) => others.push(pair),
            given => {
                let known = if is_socket { [&KNOWN[..], &KNOWN_OF_SOCKETS].concat() } else { KNOWN.to_vec() };
                // An `@` tells that the query began inside a password.
                let name = given.map_or(pair, |(name, _)| name);
                return Err(parameter::unknown(if query.contains('@') { "…" } else { name }, &known));
            }
        }
    }
    let url = if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) };
    Ok((url, settings))
}
