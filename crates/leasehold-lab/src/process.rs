//! A child process that never outlives this one.
//!
//! A child outlives a parent that is killed, unless the kernel is told otherwise, and only the child itself can tell it
//! (`PR_SET_PDEATHSIG`), between its fork and its exec. Here `setpriv` does so, which needs no unsafe code. Two things
//! are to be known about it:
//!
//! - The parent of which the kernel speaks is the *thread* that made the child. A test's thread ends with the test, and a
//!   server that several tests share would die with the first. So each child has a thread of its own here, which makes it
//!   and waits for its end.
//! - If the parent dies before the child has told the kernel, nothing is ever sent. So a shell looks once more, afterwards,
//!   whether the parent is still the one that it was, before it becomes the program.

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

/// A process that was started here. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    /// Signals go through this and not to the number, which may be somebody else's as soon as the child was waited for.
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
    /// Starts a program in a process group of its own, with all that it says going to `log`.
    ///
    /// With a user and a group it becomes theirs. That takes back what the kernel was told of our death, so it comes first.
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
                let opened = pidfd(child.id());
                if opened.is_err() {
                    child.kill()?;
                    child.wait()?;
                }
                Ok((opened?, child))
            });
            let mut child = match child {
                Ok((pidfd, child)) => {
                    // Whoever started us waits for this.
                    let _ = sender.send(Ok((child.id(), pidfd)));
                    child
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            // It fails for a process that is not our child, which this one is.
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

    /// Sent to one that has ended, it does nothing.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How it ended, if it has within that time.
    pub(crate) fn wait(&self, patience: Duration) -> Option<ExitStatus> {
        let status = lock(&self.ended.status);
        let waited = self.ended.news.wait_timeout_while(status, patience, |status| status.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether it stands still.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It cannot be refused by a child of ours. When this returns, the process is gone and its number given back.
        let _ = self.signal(Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
