//! What the tests of the lab share.

use std::time::Duration;

use leasehold_lab::{Client, Kind, Proxy, Server};

/// How long something may take that has been set off: far longer than it does on a machine that is not busy.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Shorter than that, for what must not come.
pub(crate) const A_WHILE: Duration = Duration::from_millis(60);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A server of each kind in turn.
pub(crate) fn on_each(test: impl Fn(&Server)) {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        test(&server);
    }
}

/// A server of each kind in turn, a proxy in front of it, and a client that is connected through that.
pub(crate) fn behind_a_proxy(test: impl Fn(&Server, &Proxy, Client)) {
    on_each(|server| {
        let proxy = Proxy::to(server.addr()).unwrap();
        let mut client = Client::tcp(proxy.addr()).unwrap();
        assert_eq!(client.command(&["PING"]).unwrap().text(), Some("PONG"));
        test(server, &proxy, client);
    });
}

/// Waits until something is so.
pub(crate) fn soon(what: &str, is_so: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_so() {
        assert!(since.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(ms(1));
    }
}
