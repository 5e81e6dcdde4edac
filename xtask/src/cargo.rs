//! One call of cargo, printed before it runs as a shell could repeat it.

use std::env;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use crate::Result;

pub(crate) struct Cargo {
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    sees_tools: bool,
}

impl Cargo {
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

    /// Runs it, passes its standard output through, and returns that if it succeeds.
    pub(crate) fn printed_output(&self) -> Result<String> {
        self.announce();
        let output = self.command().stderr(Stdio::inherit()).output().map_err(no_start)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        print!("{text}");
        verdict(output.status).map(|()| text)
    }

    /// Runs it, and returns its standard output.
    pub(crate) fn output(&self) -> Result<String> {
        self.announce();
        let output = self.command().stderr(Stdio::inherit()).output().map_err(no_start)?;
        verdict(output.status)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self) -> Command {
        // `cargo run` names its cargo; another one on PATH might be of another toolchain.
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(&self.args).envs(self.env.iter().cloned()).current_dir(root());
        // Continuous integration compiles once, so incremental output only costs time.
        if env::var_os("CI").is_some() && env::var_os("CARGO_INCREMENTAL").is_none() {
            command.env("CARGO_INCREMENTAL", "0");
        }
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

/// The directory of cargo's output.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The directory of programs that only this repository needs. `cargo clean` removes them.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// The root of the workspace, also if xtask is called in a directory below.
pub(crate) fn root() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR")
        .and_then(|xtask| PathBuf::from(xtask).parent().map(PathBuf::from))
        .unwrap_or_else(|| ".".into())
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
