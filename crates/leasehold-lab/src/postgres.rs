//! A PostgreSQL child process, as the resource that a lock protects.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use crate::error::{Error, Result};
use crate::home::Home;
use crate::process::Process;

/// The time limit of a start, which takes a second on an idle machine.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

const LOOKS_AGAIN_AFTER: Duration = Duration::from_millis(10);

const USER: &str = "postgres";

const DEBIAN: &str = "/usr/lib/postgresql";

/// A PostgreSQL server with an empty database. It listens only on a socket in its directory, does
/// not sync to disk, and lives as long as this value and this process.
#[derive(Debug)]
pub struct Postgres {
    /// First, because fields are dropped in order.
    process: Process,
    home: Home,
}

impl Postgres {
    pub fn start() -> Result<Self> {
        let (initdb, server) = (program("initdb")?, program("postgres")?);
        let home = Home::in_memory("lab")?;
        let data = home.path().join("data");
        fs::create_dir(&data)?;
        let owner = owner()?;
        if let Some((user, group)) = owner {
            for path in [home.path(), &data] {
                chown(path, Some(user), Some(group))?;
            }
        }
        let log = home.path().join("log");
        let failed = |program: &Path, why: String| {
            let log = fs::read(&log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            Error::NotStarted { program: program.to_owned(), why, log }
        };
        let open = || File::options().create(true).append(true).open(&log);

        let (data, socket) = (data.display().to_string(), home.path().display().to_string());
        let options = ["-D", &data, "--username", USER, "--auth", "trust", "--no-sync", "--no-instructions"];
        let options = [&options[..], &["--encoding", "UTF8", "--locale", "C"]].concat();
        match Process::start(owner, &initdb, &options, home.path(), open()?)?.wait(STARTS_WITHIN) {
            Some(made) if made.success() => {}
            Some(made) => return Err(failed(&initdb, made.to_string())),
            None => return Err(failed(&initdb, "it does not end".to_owned())),
        }

        let unsafe_and_fast = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off"];
        let options = [&["-D", &data, "-k", &socket][..], &unsafe_and_fast].concat();
        let process = Process::start(owner, &server, &options, home.path(), open()?)?;
        let postgres = Postgres { process, home };
        let since = Instant::now();
        while postgres.sql("SELECT 1")?.is_err() {
            if let Some(status) = postgres.process.wait(Duration::ZERO) {
                return Err(failed(&server, status.to_string()));
            } else if since.elapsed() > STARTS_WITHIN {
                return Err(failed(&server, "it does not answer".to_owned()));
            }
            thread::sleep(LOOKS_AGAIN_AFTER);
        }
        Ok(postgres)
    }

    /// Returns the rows and the result of each statement, line by line. The inner error is the
    /// server's message; no statement after the failed one is executed.
    pub fn sql(&self, text: &str) -> Result<std::result::Result<String, String>> {
        let output = self.psql().args(["-c", text]).stdin(Stdio::null()).output()?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        Ok(if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) })
    }

    /// Returns a `psql` session, without frames and start file. It ends with its standard input.
    pub fn psql(&self) -> Command {
        let mut command = Command::new("psql");
        command
            .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", "postgres", "-h"])
            .arg(self.home.path());
        command
    }
}

impl Drop for Postgres {
    /// Shuts the server down, so that no shared memory is left, and kills it after 10 seconds.
    fn drop(&mut self) {
        let _ = self.process.signal(Signal::INT);
        let _ = self.process.wait(Duration::from_secs(10));
    }
}

/// Finds a program: Debian has a directory for each version, and may have none on PATH.
fn program(name: &'static str) -> Result<PathBuf> {
    let mut versions: Vec<PathBuf> = match fs::read_dir(DEBIAN) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(_) => Vec::new(),
    };
    versions.sort();
    let debian = versions.into_iter().rev().map(|version| version.join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = debian.chain(env::split_paths(&path)).map(|folder| folder.join(name));
    places.find(|program| program.is_file()).ok_or(Error::NoProgram(name))
}

/// Returns the user and group to run as under root, which PostgreSQL refuses: those that own the
/// directory of Debian's package.
fn owner() -> Result<Option<(u32, u32)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let home = fs::metadata("/var/lib/postgresql").map_err(|_| Error::NoProgram("postgres"))?;
    match (home.uid(), home.gid()) {
        (0, _) => Err(io::Error::other("there is no user `postgres`").into()),
        ids => Ok(Some(ids)),
    }
}
