//! Where the server is, and how it is spoken to: the URL, understood.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use crate::error::{Error, Result};
use crate::password::Password;

/// What is wrong with a password that others could read on its way.
pub(super) const EXPOSED: &str =
    "the password goes to the server in plain text, for everybody on the way to read";

/// What the URL says to the client library, once ours has been taken out of it; with the password, if it came another way.
pub(super) fn parsed(url: &str, password: Option<&Password>) -> Result<ConnectionInfo> {
    // What the library says of it may have the password in it.
    let info = url.into_connection_info().map_err(|_| {
        let why = "write redis://HOST:PORT/DB, redis+unix:///PATH or valkey://…";
        Error::invalid("store URL", "redis:…", why)
    })?;
    let mut settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    if let Some(password) = password {
        if settings.password().is_some() {
            return Err(Error::invalid("password", "…", "the URL has one too; give it in one place"));
        }
        settings = settings.set_password(password.expose());
    }
    Ok(info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// Whether its password goes to another machine in plain text.
pub(super) fn is_exposed(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::Tcp(host, _) if !is_this_machine(host))
        && info.redis_settings().password().is_some()
}

/// A server that does not know a command repeats what was sent with it: a password, or a token.
pub(super) fn without_arguments(said: &str) -> &str {
    said.split(", with args").next().unwrap_or(said)
}

/// Whatever else may repeat it.
pub(super) fn without_password(error: Error, info: &ConnectionInfo) -> Error {
    let password = info.redis_settings().password().filter(|password| !password.is_empty());
    let hidden = |why: String| password.map_or_else(|| why.clone(), |password| why.replace(password, "…"));
    match error {
        Error::Refused { store, why } => Error::Refused { store, why: hidden(why) },
        Error::Unreachable { store, why } => Error::Unreachable { store, why: hidden(why) },
        other => other,
    }
}

/// Whether what is sent there stays on this machine. A name may lead anywhere, but for one.
pub(super) fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leads_nowhere_else_is_this_machine() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["", "localhost.example", "10.0.0.1", "0.0.0.0", "fe80::1", "redis"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
