//! A real server as a child process: started, stopped, killed, made to stand still, started again.

mod setup;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use self::setup::USER;
pub use self::setup::{Kind, Setup, Tls};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::lock;
use crate::port::Port;
use crate::process::Process;
use crate::resp::Reply;

/// How long a server may take to answer, or to end: it takes some ten milliseconds on a machine that is not busy.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// How often a new server is tried on another port when somebody was faster.
const PORTS_TRIED: usize = 10;

const LOOKS_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A real server.
///
/// - Its address is its own for as long as this value lives, also while it does not run.
/// - Its directory stays the same over a restart; what is in it depends on its configuration.
/// - When this value is dropped, the server is killed and its directory removed. When this process dies, however it does,
///   the server dies with it.
#[derive(Debug)]
pub struct Server {
    /// First, because fields are dropped in order: a server that lives writes into its directory.
    life: Mutex<Life>,
    kind: Kind,
    program: PathBuf,
    home: Home,
    port: Port,
    tls_port: Option<Port>,
}

#[derive(Debug, Default)]
struct Life {
    process: Option<Process>,
    /// The lab's own connection, kept so that asking costs a server no more than the command itself.
    client: Option<Client>,
}

impl Server {
    /// Starts a server that keeps nothing and forbids nothing; see [`Setup`] for others.
    pub fn start(kind: Kind) -> Result<Self> {
        Setup::new(kind).start()
    }

    fn start_as(setup: &Setup) -> Result<Self> {
        let program = setup.kind.program()?;
        let mut attempt = 1;
        loop {
            let (port, home) = (Port::free()?, Home::in_memory("lab")?);
            let tls_port = setup.has_tls().then(Port::free).transpose()?;
            fs::create_dir(home.path().join("data"))?;
            fs::write(home.path().join("conf"), setup.text(home.path(), &port, tls_port.as_ref()))?;
            let (kind, program) = (setup.kind, program.clone());
            let server = Server { life: Mutex::default(), kind, program, home, port, tls_port };
            match server.run() {
                Ok(()) => return Ok(server),
                Err(error) if attempt < PORTS_TRIED && is_taken(&error) => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls_port.as_ref().map(Port::addr)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("socket")
    }

    /// Its directory: `conf`, `log`, `socket`, and its data in `data`.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// What it has written so far, over all its lives.
    pub fn log(&self) -> String {
        let log = fs::read(self.home.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub fn pid(&self) -> Option<u32> {
        self.life().running().map(Process::pid)
    }

    /// Ends it in good order (SIGTERM), and waits until it has. One that stands still is woken for it.
    pub fn stop(&self) -> Result<()> {
        let mut life = self.life();
        let process = life.running().ok_or(Error::NotRunning)?;
        process.signal(Signal::TERM)?;
        process.signal(Signal::CONT)?;
        process.wait(ENDS_WITHIN).ok_or(Error::NotEnded(ENDS_WITHIN))?;
        *life = Life::default();
        Ok(())
    }

    /// Kills it (SIGKILL), and waits until it is dead.
    pub fn kill(&self) -> Result<()> {
        let mut life = self.life();
        life.running().ok_or(Error::NotRunning)?;
        *life = Life::default();
        Ok(())
    }

    /// Starts it again, on the same port and with the same directory, and waits until it answers. One that runs is stopped
    /// before.
    pub fn restart(&self) -> Result<()> {
        match self.stop() {
            Ok(()) | Err(Error::NotRunning) => {}
            Err(error) => return Err(error),
        }
        let since = Instant::now();
        loop {
            match self.run() {
                // The port is ours; whoever has it will be gone soon.
                Err(error) if is_taken(&error) && since.elapsed() < ENDS_WITHIN => {
                    thread::sleep(LOOKS_AGAIN_AFTER)
                }
                ran => return ran,
            }
        }
    }

    /// Makes it stand still (SIGSTOP), and returns when it does. Its connections stay open; nobody answers.
    pub fn pause(&self) -> Result<()> {
        let life = self.life();
        let process = life.running().ok_or(Error::NotRunning)?;
        process.signal(Signal::STOP)?;
        while !process.is_stopped() {
            if process.wait(LOOKS_AGAIN_AFTER).is_some() {
                return Err(Error::NotRunning);
            }
        }
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        Ok(self.life().running().ok_or(Error::NotRunning)?.signal(Signal::CONT)?)
    }

    /// Asks it, past every proxy and every rule of access. What it refuses is a [`Reply::Error`].
    ///
    /// It is asked over one connection that stays open, as a user called `lab`; `CLIENT LIST` shows it. Not for commands
    /// that change what a connection is (`SUBSCRIBE`, `MONITOR`, `CLIENT REPLY`).
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Reply> {
        let kept = {
            let mut life = self.life();
            life.running().ok_or(Error::NotRunning)?;
            life.client.take()
        };
        // Somebody may have had it closed; a command on it would be lost, and must not be sent twice.
        let kept = kept.and_then(Client::if_quiet);
        // Not under the lock: whoever wakes a server that stands still must not have to wait for its answer.
        let mut client = kept.map_or_else(|| self.connect(), Ok)?;
        let reply = client.command(args)?;
        // Only now: after an error it would answer the next question with what was meant for this one.
        self.life().client = Some(client);
        Ok(reply)
    }

    /// A section of `INFO`, or all of them for `everything`.
    pub fn info(&self, section: &str) -> Result<BTreeMap<String, String>> {
        let reply = self.command(&["INFO", section])?;
        let Some(text) = reply.text() else {
            return Err(Error::Unexpected { asked: format!("INFO {section}"), answer: format!("{reply:?}") });
        };
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// How often each command was executed, by scripts too, since the server began or [`forget_calls`](Server::forget_calls)
    /// was called. In small letters, a subcommand behind a bar: `client|list`. The lab's own are among them.
    pub fn calls(&self) -> Result<BTreeMap<String, u64>> {
        let stats = self.info("commandstats")?;
        let calls = stats.iter().filter_map(|(key, value)| {
            let calls = value.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((key.strip_prefix("cmdstat_")?.to_owned(), calls))
        });
        Ok(calls.collect())
    }

    /// Sets all of its statistics back.
    pub fn forget_calls(&self) -> Result<()> {
        let reply = self.command(&["CONFIG", "RESETSTAT"])?;
        if reply.is_ok() {
            return Ok(());
        }
        Err(Error::Unexpected { asked: "CONFIG RESETSTAT".to_owned(), answer: format!("{reply:?}") })
    }

    /// Starts the process, and waits until it answers.
    fn run(&self) -> Result<()> {
        let mut life = self.life();
        let earlier = self.log().len();
        let log = File::options().create(true).append(true).open(self.home.path().join("log"))?;
        let process = Process::start(None, &self.program, &["conf"], self.home.path(), log)?;
        let since = Instant::now();
        let why = loop {
            match self.connect() {
                Ok(client) => {
                    *life = Life { process: Some(process), client: Some(client) };
                    return Ok(());
                }
                Err(error) if since.elapsed() > STARTS_WITHIN => {
                    break format!("it does not answer ({error})");
                }
                Err(_) => {}
            }
            if let Some(status) = process.wait(LOOKS_AGAIN_AFTER) {
                break status.to_string();
            }
        };
        let log = self.log().split_off(earlier);
        Err(Error::NotStarted { program: self.program.clone(), why, log })
    }

    /// Through its socket, which lies in its own directory: whoever answers there is this server and no other. One that
    /// still reads its data does not count as connected.
    fn connect(&self) -> Result<Client> {
        let mut client = Client::unix(&self.socket())?;
        let unexpected = |asked: &str, answer| Err(Error::Unexpected { asked: asked.to_owned(), answer });
        if let Reply::Error(answer) = client.command(&["AUTH", USER, "any"])? {
            return unexpected("AUTH", answer);
        }
        match client.command(&["PING"])? {
            // Any other refusal is an answer: a replica without its master has nothing better to say.
            Reply::Error(answer) if answer.starts_with("LOADING") => unexpected("PING", answer),
            _ => Ok(client),
        }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        lock(&self.life)
    }
}

impl Life {
    /// The process, unless it has ended by itself.
    fn running(&self) -> Option<&Process> {
        self.process.as_ref().filter(|process| process.wait(Duration::ZERO).is_none())
    }
}

/// Whether somebody else has the port.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::NotStarted { log, .. } if log.contains("Address already in use"))
}
