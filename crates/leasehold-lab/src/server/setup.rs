//! The program and the configuration of a server.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::Server;
use crate::error::{Error, Result};
use crate::port::Port;

/// The lab's own user, with all permissions.
pub(super) const USER: &str = "lab";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Redis as Debian has it: 7.0.
    Redis,
    /// Valkey 9. `cargo xtask test` installs a build without TLS.
    Valkey,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Redis, Kind::Valkey];

    /// Finds the server program in the order that the [crate] documents.
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

/// The configuration of a server to start.
///
/// By default the server stores nothing on disk, listens on its own port of 127.0.0.1 and on a
/// socket in its directory, and allows all users everything. Added lines take precedence.
#[derive(Debug, Clone)]
pub struct Setup {
    pub(super) kind: Kind,
    lines: Vec<String>,
    pub(super) tls: Option<Tls>,
}

/// The PEM files of a server with TLS on a second port.
#[derive(Debug, Clone)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The certificate of the signer.
    pub authority: PathBuf,
    /// Requires a client certificate.
    pub asks_clients: bool,
}

impl Setup {
    pub fn new(kind: Kind) -> Self {
        Setup { kind, lines: Vec::new(), tls: None }
    }

    /// Adds a line of configuration, such as `maxmemory 2mb`.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Keeps the data over a restart and a kill: each write is synced before its reply.
    pub fn durable(self) -> Self {
        self.line("appendonly yes").line("appendfsync always")
    }

    /// Sets the password of the default user.
    pub fn password(self, password: &str) -> Self {
        self.line(format!("requirepass {password}"))
    }

    /// Adds a user, or changes `default`: `user("alice", "on >secret ~lock:* +@all -eval")`.
    pub fn user(self, name: &str, rules: &str) -> Self {
        self.line(format!("user {name} {rules}"))
    }

    /// Disables a command, as some hosting providers do.
    pub fn without(self, command: &str) -> Self {
        self.line(format!("rename-command {command} \"\""))
    }

    pub fn debug_commands(self) -> Self {
        self.line("enable-debug-command yes")
    }

    /// Limits the memory and sets the eviction policy: `noeviction`, `volatile-ttl`, …
    pub fn memory(self, bytes: u64, policy: &str) -> Self {
        self.line(format!("maxmemory {bytes}")).line(format!("maxmemory-policy {policy}"))
    }

    pub fn replica_of(self, master: &Server) -> Self {
        let user = format!("masteruser {USER}");
        self.line(format!("replicaof 127.0.0.1 {}", master.addr().port())).line(user).line("masterauth any")
    }

    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    pub fn start(&self) -> Result<Server> {
        Server::start_as(self)
    }

    pub(super) fn text(&self, folder: &Path, port: &Port, tls_port: Option<&Port>) -> String {
        let folder = folder.display();
        // Without `repl-diskless-sync-delay 0`, a master waits five seconds for more replicas.
        let mut text = format!(
            "bind 127.0.0.1\nport {}\nunixsocket {folder}/socket\nunixsocketperm 700\ndir {folder}/data\n\
             daemonize no\nlogfile \"\"\nsave \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n\
             user {USER} on nopass ~* &* +@all\n",
            port.number(),
        );
        if let (Some(tls), Some(port)) = (&self.tls, tls_port) {
            let asks = if tls.asks_clients { "yes" } else { "no" };
            // A write to a string never fails.
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
