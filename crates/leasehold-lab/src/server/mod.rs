//! A Redis or Valkey child process that a test can stop, kill, pause and restart.

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

/// The time limits of a start and a stop, which take about 10 ms on an idle machine.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// The number of ports tried for a new server if another process takes the port first.
const PORTS_TRIED: usize = 10;

const LOOKS_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A real server, which dies with this process, however the process ends.
///
/// - Its address stays reserved while this value lives, also while the server does not run.
/// - Its directory stays the same over a restart.
/// - A drop kills the server and removes its directory.
#[derive(Debug)]
pub struct Server {
    /// Dropped first: a running server writes into its directory.
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
    /// The lab's own connection, kept so that a command causes no other load on the server.
    client: Option<Client>,
}

impl Server {
    /// Starts a server with the defaults of [`Setup`].
    pub fn start(kind: Kind) -> Result<Self> {
        Setup::new(kind).start()
    }

    fn start_as(setup: &Setup) -> Result<Self> {
        let program = setup.kind.program()?;
        let mut attempt = 1;
        loop {
            let (port, home) = (Port::free()?, Home::in_memory("lab")?);
            let tls_port = setup.tls.is_some().then(Port::free).transpose()?;
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

    /// The server's directory: `conf`, `log`, `socket`, and its data in `data`.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Returns the log of all runs.
    pub fn log(&self) -> String {
        let log = fs::read(self.home.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub fn pid(&self) -> Option<u32> {
        self.life().running().map(Process::pid)
    }

    /// Shuts the server down (SIGTERM), also a paused one, and waits for its end.
    pub fn stop(&self) -> Result<()> {
        let mut life = self.life();
        let process = life.running().ok_or(Error::NotRunning)?;
        process.signal(Signal::TERM)?;
        process.signal(Signal::CONT)?;
        process.wait(ENDS_WITHIN).ok_or(Error::NotEnded(ENDS_WITHIN))?;
        *life = Life::default();
        Ok(())
    }

    /// Kills the server (SIGKILL), and waits for its end.
    pub fn kill(&self) -> Result<()> {
        let mut life = self.life();
        life.running().ok_or(Error::NotRunning)?;
        *life = Life::default();
        Ok(())
    }

    /// Stops the server if it runs, starts it on the same port, and waits until it answers.
    pub fn restart(&self) -> Result<()> {
        match self.stop() {
            Ok(()) | Err(Error::NotRunning) => {}
            Err(error) => return Err(error),
        }
        let since = Instant::now();
        loop {
            match self.run() {
                // The port is reserved for us, so the other user of it is short-lived.
                Err(error) if is_taken(&error) && since.elapsed() < ENDS_WITHIN => {
                    thread::sleep(LOOKS_AGAIN_AFTER)
                }
                ran => return ran,
            }
        }
    }

    /// Stops the process (SIGSTOP), and waits until it is stopped. Its connections stay open.
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

    /// Continues a paused process (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        Ok(self.life().running().ok_or(Error::NotRunning)?.signal(Signal::CONT)?)
    }

    /// Sends a command past every proxy and access rule. A refusal is a [`Reply::Error`].
    ///
    /// It uses one open connection of the user `lab`, which `CLIENT LIST` shows. Not for commands
    /// that change the state of a connection (`SUBSCRIBE`, `MONITOR`, `CLIENT REPLY`).
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Reply> {
        let kept = {
            let mut life = self.life();
            life.running().ok_or(Error::NotRunning)?;
            life.client.take()
        };
        // A test may have closed it: a command on it would be lost, and must not be sent twice.
        let kept = kept.and_then(Client::if_quiet);
        // Without the lock: `resume` must not wait for the reply of a paused server.
        let mut client = kept.map_or_else(|| self.connect(), Ok)?;
        let reply = client.command(args)?;
        // Only after a success: after an error, the next command could get the reply to this one.
        self.life().client = Some(client);
        Ok(reply)
    }

    /// Returns a section of `INFO`, or all of them for `everything`.
    pub fn info(&self, section: &str) -> Result<BTreeMap<String, String>> {
        let reply = self.command(&["INFO", section])?;
        let Some(text) = reply.text() else {
            return Err(Error::Unexpected { asked: format!("INFO {section}"), answer: format!("{reply:?}") });
        };
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// Returns the calls per command, also by scripts and by the lab, since the start or the last
    /// [`forget_calls`](Server::forget_calls). Commands are in lower case, with subcommands as
    /// `client|list`.
    pub fn calls(&self) -> Result<BTreeMap<String, u64>> {
        let stats = self.info("commandstats")?;
        let calls = stats.iter().filter_map(|(key, value)| {
            let calls = value.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((key.strip_prefix("cmdstat_")?.to_owned(), calls))
        });
        Ok(calls.collect())
    }

    /// Resets all statistics of the server.
    pub fn forget_calls(&self) -> Result<()> {
        let reply = self.command(&["CONFIG", "RESETSTAT"])?;
        if reply.is_ok() {
            return Ok(());
        }
        Err(Error::Unexpected { asked: "CONFIG RESETSTAT".to_owned(), answer: format!("{reply:?}") })
    }

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

    /// Connects through the socket in the server's directory, which no other server answers. Fails
    /// while the server loads its data.
    fn connect(&self) -> Result<Client> {
        let mut client = Client::unix(&self.socket())?;
        let unexpected = |asked: &str, answer| Err(Error::Unexpected { asked: asked.to_owned(), answer });
        if let Reply::Error(answer) = client.command(&["AUTH", USER, "any"])? {
            return unexpected("AUTH", answer);
        }
        match client.command(&["PING"])? {
            // Other errors are fine: a replica without its master always answers with one.
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

fn is_taken(error: &Error) -> bool {
    matches!(error, Error::NotStarted { log, .. } if log.contains("Address already in use"))
}
