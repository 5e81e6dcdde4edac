//! Which server is started, and with what configuration.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::Server;
use crate::error::{Error, Result};
use crate::port::Port;

/// The lab's own user: it may do anything, whatever a test forbids the others.
pub(super) const USER: &str = "lab";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Redis as Debian has it: 7.0.
    Redis,
    /// Valkey 9. The one that `cargo xtask test` installs is built without TLS.
    Valkey,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Redis, Kind::Valkey];

    /// Where the environment says; else where `cargo xtask` installs what only this repository needs, which is beside what
    /// cargo has built and we are run from; else on PATH.
    pub(super) fn program(self) -> Result<PathBuf> {
        let (name, variable) = match self {
            Kind::Redis => ("redis-server", "LEASEHOLD_REDIS_SERVER"),
            Kind::Valkey => ("valkey-server", "LEASEHOLD_VALKEY_SERVER"),
        };
        if let Some(told) = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file()) {
            return Ok(told);
        }
        let built = env::current_exe().unwrap_or_default();
        let tools = built.ancestors().map(|folder| folder.join("tools/bin"));
        let path = env::var_os("PATH").unwrap_or_default();
        let mut places = tools.chain(env::split_paths(&path)).map(|folder| folder.join(name));
        places.find(|program| program.is_file()).ok_or(Error::NoProgram(name))
    }
}

/// A server that is yet to be started.
///
/// Without further words it keeps nothing on disk, listens on a port of its own on 127.0.0.1 and on a socket in its
/// directory, and lets everybody do anything. What is added comes after that in its configuration, so it has the last word.
#[derive(Debug, Clone)]
pub struct Setup {
    pub(super) kind: Kind,
    lines: Vec<String>,
    tls: Option<Tls>,
}

/// The files of a server that speaks TLS on a second port, all in PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Who signed the certificate.
    pub authority: PathBuf,
    /// Whether clients have to show a certificate too.
    pub asks_clients: bool,
}

impl Setup {
    pub fn new(kind: Kind) -> Self {
        Setup { kind, lines: Vec::new(), tls: None }
    }

    /// Adds a line as it stands in a configuration file, such as `maxmemory 2mb`.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Keeps the data over a restart, and over a kill: nothing is answered before it is written down.
    pub fn durable(self) -> Self {
        self.line("appendonly yes").line("appendfsync always")
    }

    /// Wants a password from whoever does not say who he is.
    pub fn password(self, password: &str) -> Self {
        self.line(format!("requirepass {password}"))
    }

    /// Adds a user by its rules, or changes `default`: `user("alice", "on >secret ~lock:* +@all -eval")`.
    pub fn user(self, name: &str, rules: &str) -> Self {
        self.line(format!("user {name} {rules}"))
    }

    /// Takes a command away from everybody, as some who host servers do.
    pub fn without(self, command: &str) -> Self {
        self.line(format!("rename-command {command} \"\""))
    }

    pub fn debug_commands(self) -> Self {
        self.line("enable-debug-command yes")
    }

    /// Limits its memory, and says what goes when that is full: `noeviction`, `volatile-ttl`, …
    pub fn memory(self, bytes: u64, policy: &str) -> Self {
        self.line(format!("maxmemory {bytes}")).line(format!("maxmemory-policy {policy}"))
    }

    pub fn replica_of(self, master: &Server) -> Self {
        let user = format!("masteruser {USER}");
        self.line(format!("replicaof 127.0.0.1 {}", master.addr().port())).line(user).line("masterauth any")
    }

    /// Speaks TLS too, on a port of its own.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Starts it, and waits until it answers.
    pub fn start(&self) -> Result<Server> {
        Server::start_as(self)
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn text(&self, folder: &Path, port: &Port, tls_port: Option<&Port>) -> String {
        let folder = folder.display();
        // A master waits five seconds for more replicas before it serves the first, unless it is told not to.
        let mut text = format!(
            "bind 127.0.0.1\nport {}\nunixsocket {folder}/socket\nunixsocketperm 700\ndir {folder}/data\n\
             daemonize no\nlogfile \"\"\nsave \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n\
             user {USER} on nopass ~* &* +@all\n",
            port.number(),
        );
        if let (Some(tls), Some(port)) = (&self.tls, tls_port) {
            let asks = if tls.asks_clients { "yes" } else { "no" };
            // Writing into a string does not fail.
            let _ = write!(
                text,
                "tls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients {asks}\n",
                port.number(),
                tls.certificate.display(),
                tls.key.display(),
                tls.authority.display(),
            );
        }
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}
