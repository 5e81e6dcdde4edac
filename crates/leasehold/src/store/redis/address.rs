//! Where the server is, and how it is spoken to: the URL, understood.

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError,
};

use super::link::explained;
use super::tls::{Files, NO_TLS};
use crate::error::{Error, Result};
use crate::password::Password;

/// What is wrong with a password that others could read on its way.
pub(in crate::store) const EXPOSED: &str =
    "the password goes to the server in plain text, for everybody on the way to read";

/// A server, and how it is reached.
#[derive(Debug, Clone)]
pub(in crate::store) struct Address {
    pub(in crate::store) info: ConnectionInfo,
    files: Files,
}

impl Address {
    /// What the URL says to the client library, once ours has been taken out of it; with the password, if it came another way.
    pub(in crate::store) fn new(url: &str, password: Option<&Password>, files: &Files) -> Result<Self> {
        let info = parsed(url, password)?;
        files.check(matches!(info.addr(), ConnectionAddr::TcpTls { .. }))?;
        Ok(Address { info, files: files.clone() })
    }

    pub(in crate::store) fn client(&self) -> Result<Client> {
        match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => self.files.client(self.info.clone()),
            _ => Client::open(self.info.clone()).map_err(explained),
        }
    }

    /// Where the server is: `HOST:PORT`, or the path of its socket.
    pub(in crate::store) fn place(&self) -> String {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}")
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            _ => "a server".to_owned(),
        }
    }

    /// Says which server it is that refuses a connection.
    pub(super) fn located(&self, error: Error) -> Error {
        match error {
            Error::Refused { store, why } => {
                Error::Refused { store, why: format!("{}: {why}", self.place()) }
            }
            error => error,
        }
    }

    /// Why no connection came about, for people.
    pub(in crate::store) fn explained(&self, error: RedisError) -> Error {
        let why = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } if error.is_timeout() => {
                let why = format!("no answer in time; perhaps {NO_TLS}");
                Some(Error::Unreachable { store: "redis", why })
            }
            ConnectionAddr::TcpTls { host, .. } => self.files.explained(&error, host),
            // Cut off at the first word, or answered with one that is none.
            ConnectionAddr::Tcp(..)
                if error.kind() == ErrorKind::Parse
                    || error.is_connection_dropped() && !error.is_connection_refusal() =>
            {
                let why = format!("{error}; if that is its TLS port, write `rediss://`");
                Some(Error::Unreachable { store: "redis", why })
            }
            _ => None,
        };
        without_password(why.unwrap_or_else(|| explained(error)), &self.info)
    }
}

fn parsed(url: &str, password: Option<&Password>) -> Result<ConnectionInfo> {
    // What the library says of it may have the password in it.
    let info = url.into_connection_info().map_err(|_| {
        let why = "write redis://HOST:PORT/DB, rediss://… for TLS, redis+unix:///PATH or valkey://…";
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
pub(in crate::store) fn is_exposed(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::Tcp(host, _) if !is_this_machine(host))
        && info.redis_settings().password().is_some()
}

/// A server that does not know a command repeats what was sent with it: a password, or a token.
pub(super) fn without_arguments(said: &str) -> &str {
    said.split(", with args").next().unwrap_or(said)
}

/// Whatever else may repeat it.
fn without_password(error: Error, info: &ConnectionInfo) -> Error {
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
