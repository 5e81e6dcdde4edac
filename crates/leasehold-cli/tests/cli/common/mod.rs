//! What the tests of the command have in common.

pub(crate) mod roles;
pub(crate) mod terminal;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use rustix::process::{Pid, Signal, kill_process};

/// The longest that anything here takes, with room for a machine that is busy with other things.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// For `env`: whoever runs the tests may ignore some signals (a shell does for what it runs in the background), and
/// programs inherit that.
pub(crate) const UNIGNORED: &str = "--default-signal=HUP,INT,QUIT,TSTP,TTIN,TTOU";

/// A directory for one test, with a store in it.
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn new() -> Self {
        Home::under(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Where no disk stands still: for leases so short that a stall would cost them their life.
    pub(crate) fn in_memory() -> Self {
        Home::under(Path::new("/dev/shm"))
    }

    fn under(place: &Path) -> Self {
        static HOMES: AtomicU64 = AtomicU64::new(0);
        let number = HOMES.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("leasehold_cli_{}_{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Home(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.0.join(".local/state/leasehold")
    }

    /// The command with nothing around it but this directory.
    pub(crate) fn leasehold(&self) -> Command {
        let mut command = Command::cargo_bin("leasehold").unwrap();
        command
            .env_clear()
            .env("HOME", &self.0)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir(&self.0)
            .timeout(LONG);
        command
    }

    /// The command as another user, of the group of the same number and of these groups, with a umask that closes all it
    /// makes to others. Needs root.
    pub(crate) fn leasehold_as(&self, user: u32, groups: &[u32]) -> Command {
        let mut command = Command::from_std(self.as_user(user, groups));
        command.timeout(LONG);
        command
    }

    pub(crate) fn as_user(&self, user: u32, groups: &[u32]) -> std::process::Command {
        use std::os::unix::fs::PermissionsExt;
        // Other users need not be able to reach where it was built.
        let binary = self.0.join("leasehold-for-all");
        if !binary.exists() {
            // By another process: a child that another thread starts meanwhile would inherit a descriptor that writes to it,
            // and a file that is written to cannot be executed.
            let built = assert_cmd::cargo::cargo_bin("leasehold");
            assert!(std::process::Command::new("cp").args([&built, &binary]).status().unwrap().success());
            for path in [&binary, &self.0] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "umask 077; exec setpriv \"$@\"", "setpriv"]);
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        match groups.is_empty() {
            true => command.arg("--clear-groups"),
            false => command.arg(format!("--groups={}", groups.join(","))),
        };
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg(binary);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).current_dir("/");
        command
    }

    /// Runs it; exit code, standard output, standard error.
    pub(crate) fn run(&self, line: &str) -> (i32, String, String) {
        said(self.leasehold().args(line.split_whitespace()))
    }

    /// The same for arguments with spaces in them.
    pub(crate) fn call<const N: usize>(&self, args: [&str; N]) -> (i32, String, String) {
        said(self.leasehold().args(args))
    }

    /// Starts it, and goes on.
    pub(crate) fn start<const N: usize>(&self, args: [&str; N]) -> Running {
        self.start_with(args, |_| {})
    }

    pub(crate) fn start_with<const N: usize>(
        &self,
        args: [&str; N],
        change: impl FnOnce(&mut std::process::Command),
    ) -> Running {
        let mut command = std::process::Command::new("env");
        command
            .arg(UNIGNORED)
            .arg(assert_cmd::cargo::cargo_bin("leasehold"))
            .args(args)
            .env_clear()
            .env("HOME", &self.0)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        Running { child, stdout }
    }

    /// Starts it as another user, and goes on.
    pub(crate) fn start_as(&self, user: u32, groups: &[u32], args: &[&str]) -> Running {
        let mut command = self.as_user(user, groups);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        Running { child, stdout }
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// A script that can be run.
    pub(crate) fn script(&self, file: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        self.write(file, &format!("#!/bin/sh\n{text}\n"));
        let path = self.0.join(file);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// Until when the one holder of a name holds it, if it is not renewed.
    pub(crate) fn deadline(&self, name: &str) -> Instant {
        let asked = Instant::now();
        let (_, told, _) = self.call(["inspect", name, "--output", "json"]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        asked + Duration::from_millis(told["holders"][0]["remaining_ms"].as_u64().expect("it is held"))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn said(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("it was not killed"), text(output.stdout), text(output.stderr))
}

/// A leasehold that runs. Killed when it is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Running {
    /// The next line on its standard output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lines up to this one.
    pub(crate) fn line_that_is(&mut self, expected: &str) {
        loop {
            let mut line = String::new();
            let n = self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
            assert_ne!(n, 0, "`{expected}` was not said: {}", self.complaint());
            if line.trim_end() == expected {
                return;
            }
        }
    }

    /// The next line, as the number of a process.
    pub(crate) fn pid(&mut self) -> i32 {
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("not a pid: `{line}`: {}", self.complaint()))
    }

    fn complaint(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        let _ = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut text));
        text
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its end: exit code, the rest of standard output, standard error.
    pub(crate) fn end(mut self) -> (i32, String, String) {
        drop(self.child.stdin.take());
        until(|| self.child.try_wait().unwrap().is_some(), "leasehold to end");
        let (mut out, mut told) = (String::new(), String::new());
        // Something it left behind may still have these open, so only what is there is read.
        if let Some(mut stdout) = self.stdout.take() {
            nonblocking(stdout.get_ref());
            let _ = stdout.read_to_string(&mut out);
        }
        if let Some(mut stderr) = self.child.stderr.take() {
            nonblocking(&stderr);
            let _ = stderr.read_to_string(&mut told);
        }
        let status = self.child.wait().unwrap();
        (status.code().expect("it was not killed"), out, told)
    }
}

fn nonblocking(fd: impl std::os::fd::AsFd) {
    rustix::io::ioctl_fionbio(fd, true).unwrap();
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something that is bound to come.
pub(crate) fn until(mut is_so: impl FnMut() -> bool, what: &str) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether this process runs. (A zombie does not.)
pub(crate) fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
}

pub(crate) fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// The part of its full length at which a long proof runs.
pub(crate) fn scaled(full: u64) -> u64 {
    let scale: f64 =
        std::env::var("LEASEHOLD_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(0.1);
    ((full as f64 * scale).ceil() as u64).max(1)
}
