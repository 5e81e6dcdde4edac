//! A worker process for part of a test: the test program itself, run for one test in a role.
//!
//! A module has a test that calls [`play`], and passes its [`ChildTest`] to [`Worker::start`]. Role
//! and test talk line by line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::child::ChildTest;
use super::clock_shim::WallClock;

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const HOME: &str = "LEASEHOLD_TEST_HOME";

/// The prefix of a role's lines; the rest of the output belongs to the test harness.
const MARK: &str = ">> ";

/// The first line of every role, which proves that the harness ran the test.
const STARTED: &str = "started in its role";

pub fn say(what: impl std::fmt::Display) {
    println!("{MARK}{what}");
}

/// Waits for a line from the test; exits if the test is gone.
pub fn listen() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0);
    }
    line.trim_end().to_owned()
}

/// Runs `roles` with the role and the directory, if this process is a worker.
pub fn play(roles: impl FnOnce(&str, &Path)) {
    if let (Ok(role), Some(home)) = (std::env::var(ROLE), std::env::var_os(HOME)) {
        say(STARTED);
        roles(&role, &PathBuf::from(home));
    }
}

/// A process in a role, killed on drop.
pub struct Worker {
    child: Child,
    /// The worker; `child` may be its `unshare`.
    pid: Pid,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    has_started: bool,
}

impl Worker {
    pub fn start(test: ChildTest, role: &str, home: &Path) -> Self {
        Worker::start_with(test.command(), role, home)
    }

    pub fn start_under(clock: &WallClock, test: ChildTest, role: &str, home: &Path) -> Self {
        let mut command = test.command();
        clock.over(&mut command);
        Worker::start_with(command, role, home)
    }

    /// Starts a worker in its own PID namespace, as in a container.
    pub fn start_in_namespace(test: ChildTest, role: &str, home: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).arg(std::env::current_exe().unwrap());
        command.args(test.args());
        // `unshare` prints a message when its child is killed.
        command.stderr(Stdio::null());
        let mut worker = Worker::start_with(command, role, home);
        assert_eq!(worker.hear(), "in a namespace");
        let around = worker.child.id();
        let inner = std::fs::read_to_string(format!("/proc/{around}/task/{around}/children")).unwrap();
        worker.pid = Pid::from_raw(inner.trim().parse().unwrap()).unwrap();
        worker
    }

    fn start_with(mut command: Command, role: &str, home: &Path) -> Self {
        let mut child = command
            .arg("--test-threads=1")
            .env(ROLE, role)
            .env(HOME, home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Worker { child, pid, stdin, stdout, has_started: false }
    }

    pub fn hear(&mut self) -> String {
        self.await_start();
        self.next_line().expect("a worker ended before it said what was due")
    }

    fn await_start(&mut self) {
        if !self.has_started {
            let first = self.next_line();
            assert_eq!(first.as_deref(), Some(STARTED), "a worker did not start in its role");
            self.has_started = true;
        }
    }

    fn next_line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The harness may have written the start of the line.
            if let Some((_, said)) = line.split_once(MARK) {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    pub fn tell(&mut self, what: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Sends SIGSTOP, and waits until the process is stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.pid.as_raw_nonzero());
        while !std::fs::read_to_string(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('T') {
            std::thread::yield_now();
        }
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Kills the process, and asserts that it had not ended by itself.
    pub fn kill_alive(mut self) {
        self.kill();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "a worker ended by itself: {status}");
    }

    /// Waits for the end, and asserts that it was a success.
    pub fn ended_well(mut self) {
        self.stdin = None;
        self.await_start();
        assert!(self.child.wait().unwrap().success(), "a worker failed");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
