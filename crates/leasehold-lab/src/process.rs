//! A child process that never outlives this one.
//!
//! A child outlives a killed parent unless the child sets `PR_SET_PDEATHSIG` between fork and exec.
//! `setpriv` does so without unsafe code. Two pitfalls:
//!
//! - The parent here is the *thread* that made the child. A test's thread ends with its test, and a
//!   server that several tests share would die with the first. So each child has its own thread,
//!   which spawns it and waits for its end.
//! - If the parent dies before the child makes that call, no signal is ever sent. So a shell checks
//!   afterwards that the parent is still the same, before it becomes the program.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::lock;

const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// A child process, killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    /// Target of signals: the process id may be reused as soon as the child was waited for.
    pidfd: OwnedFd,
    ended: Arc<Ended>,
    waiter: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Ended {
    status: Mutex<Option<ExitStatus>>,
    news: Condvar,
}

impl Process {
    /// Starts a program in its own process group, with its output in `log`.
    ///
    /// A change of user and group resets `PR_SET_PDEATHSIG`, so it comes first.
    pub(crate) fn start(
        owner: Option<(u32, u32)>,
        program: &Path,
        args: &[&str],
        folder: &Path,
        log: File,
    ) -> io::Result<Self> {
        let mut command = Command::new("setpriv");
        if let Some((user, group)) = owner {
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}"));
            command.args(["--clear-groups", "setpriv"]);
        }
        command
            .args(["--pdeathsig", "KILL", "sh", "-c", UNLESS_ORPHANED])
            .arg(std::process::id().to_string())
            .arg(program)
            .args(args)
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let ended = Arc::new(Ended::default());
        let (sender, started) = mpsc::channel();
        let theirs = ended.clone();
        let waiter = thread::Builder::new().name("lab-process".to_owned()).spawn(move || {
            let child = command.spawn().and_then(|mut child| {
                let opened = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
                if opened.is_err() {
                    child.kill()?;
                    child.wait()?;
                }
                Ok((opened?, child))
            });
            let mut child = match child {
                Ok((pidfd, child)) => {
                    let _ = sender.send(Ok((child.id(), pidfd)));
                    child
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            // It fails only for a process that is not our child.
            let status = child.wait().ok();
            *lock(&theirs.status) = status;
            theirs.news.notify_all();
        })?;
        let (pid, pidfd) = started.recv().map_err(|_| io::Error::other("the thread of a process died"))??;
        Ok(Process { pid, pidfd, ended, waiter: Some(waiter) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Does nothing for a process that has ended.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the exit status, if the process ends within that time.
    pub(crate) fn wait(&self, patience: Duration) -> Option<ExitStatus> {
        let status = lock(&self.ended.status);
        let waited = self.ended.news.wait_timeout_while(status, patience, |status| status.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns true if the process is stopped by a signal.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Signals to our own child never fail. The join waits until the process is reaped.
        let _ = self.signal(Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}
