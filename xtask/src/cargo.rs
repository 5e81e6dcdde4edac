//! One call of cargo: shown before it runs, in the words that would repeat it in a shell.

use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::Result;
use crate::tally::Tally;

/// How long the output may stay open after cargo has ended. Beyond that it is held by a process that a test started
/// and forgot, which would keep us waiting for ever.
const OUTPUT_CLOSES_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct Cargo {
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    sees_tools: bool,
}

impl Cargo {
    /// The arguments, separated by spaces.
    pub(crate) fn new(args: &str) -> Self {
        Cargo {
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
            sees_tools: false,
        }
    }

    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn env(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.env.push((key, value.into()));
        self
    }

    /// Lets it find subcommands in [`tools`] too, after those on PATH.
    pub(crate) fn sees_tools(mut self) -> Self {
        self.sees_tools = true;
        self
    }

    /// Runs it with its output passed through.
    pub(crate) fn run(&self) -> Result<()> {
        self.announce();
        verdict(self.command().status().map_err(no_start)?)
    }

    /// Runs it, and returns what it prints on standard output.
    pub(crate) fn output(&self) -> Result<String> {
        self.announce();
        let output = self.command().stderr(Stdio::inherit()).output().map_err(no_start)?;
        verdict(output.status)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it with its output passed through, and counts the tests on the way. What was counted before a failure
    /// is kept.
    pub(crate) fn run_tests(&self) -> (Tally, Result<()>) {
        self.announce();
        let tally = Arc::new(Mutex::new(Tally::default()));
        let ran = self.stream(tally.clone()).and_then(verdict);
        let mut tally = lock(&tally).clone();
        tally.finish();
        (tally, ran)
    }

    fn stream(&self, tally: Arc<Mutex<Tally>>) -> Result<ExitStatus> {
        // One pipe for both: with two, cargo's headings would drift away from the tests they stand above.
        let (reader, writer) = io::pipe().map_err(no_start)?;
        let mut command = self.command();
        if io::stdout().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        command.stdout(writer.try_clone().map_err(no_start)?).stderr(writer);
        let mut child = command.spawn().map_err(no_start)?;
        // It holds our ends of the pipe; while they are open, the reader sees no end.
        drop(command);

        let (sender, closed) = mpsc::channel();
        thread::spawn(move || {
            pass_through(reader, &tally);
            sender.send(())
        });
        let status = child.wait().map_err(|error| format!("Waiting for cargo failed: {error}."))?;
        closed.recv_timeout(OUTPUT_CLOSES_WITHIN).map_err(|_| {
            format!("Cargo ended with {status}, but a process that a test left behind holds the output open.")
        })?;
        Ok(status)
    }

    fn command(&self) -> Command {
        // `cargo run` says which cargo it is; another one on PATH might be of another toolchain.
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(&self.args).envs(self.env.iter().cloned()).current_dir(root());
        if self.sees_tools {
            let mut path = env::var_os("PATH").unwrap_or_default();
            path.push(":");
            path.push(tools().join("bin"));
            command.env("PATH", path);
        }
        command
    }

    fn announce(&self) {
        println!("\n==> {self}");
    }
}

impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.env {
            write!(f, "{key}={} ", quoted(value))?;
        }
        f.write_str("cargo")?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// Where programs are installed that only this repository needs: `cargo clean` takes them away.
pub(crate) fn tools() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join("tools")
}

/// The root of the workspace, wherever in it we were called.
pub(crate) fn root() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR")
        .and_then(|xtask| PathBuf::from(xtask).parent().map(PathBuf::from))
        .unwrap_or_else(|| ".".into())
}

/// As the bytes come, not line by line: a test that hangs is seen by its half line.
fn pass_through(mut from: impl Read, tally: &Mutex<Tally>) {
    let mut chunk = [0; 8 * 1024];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return,
            Ok(n) => {
                lock(tally).feed(&chunk[..n]);
                // Our reader may have gone; the tests are run and counted to the end all the same.
                let mut out = io::stdout();
                let _ = out.write_all(&chunk[..n]).and_then(|()| out.flush());
            }
            // A signal is not the end.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

fn verdict(status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { Err(format!("Cargo ended with {status}.")) }
}

fn no_start(error: io::Error) -> String {
    format!("Cargo could not be started: {error}.")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_shown_as_a_shell_would_take_it() {
        let call = Cargo::new("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings").arg("it's");
        assert_eq!(call.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s'");
    }
}
