//! Where the server is, and how it is spoken to: the URL, understood.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use crate::error::{Error, Result};

/// What the URL says to the client library, once ours has been taken out of it.
pub(super) fn parsed(url: &str) -> Result<ConnectionInfo> {
    // What the library says of it may have the password in it.
    let info = url.into_connection_info().map_err(|_| {
        let why = "write redis://HOST:PORT/DB, redis+unix:///PATH or valkey://…";
        Error::invalid("store URL", "redis:…", why)
    })?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true)))
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
