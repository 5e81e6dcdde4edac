//! How the command ends: one exit code and one message for each kind of failure.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use leasehold::Error;
use serde_json::json;

use crate::args::Output;
use crate::output::Logger;

/// Of sysexits.h where it has one, and of `timeout` and shells where those do.
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
/// The command ran, and the store did not confirm that it keeps the lock for `--once-per` or `--at-least`.
pub(crate) const NOT_RECORDED: u8 = 74;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const CONFIGURATION: u8 = 78;
pub(crate) const LOST: u8 = 79;
pub(crate) const TOO_LONG: u8 = 124;
pub(crate) const INTERNAL: u8 = 125;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// Why it did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// A word for machines.
    pub(crate) kind: &'static str,
    pub(crate) code: u8,
    /// For people; where it is empty there is nobody to read it.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { kind: "usage", code: USAGE, message: message.into() }
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Failure { kind: "configuration", code: CONFIGURATION, message: message.into() }
    }

    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Failure { kind: "internal", code: INTERNAL, message: message.to_string() }
    }

    /// Somebody else has it, and whoever asked has not said to wait any longer.
    pub(crate) fn busy(code: u8, error: &Error) -> Self {
        let message = format!("{error}; come back later, or wait for it (longer) with --wait");
        Failure { kind: "busy", code, message }
    }

    /// The same with more behind its message.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.message += more;
        self
    }

    pub(crate) fn report(&self, voice: Logger, output: Output) -> ExitCode {
        if !self.message.is_empty() {
            voice.error(&self.message);
            if output == Output::Json {
                self.print_json();
            }
        }
        ExitCode::from(self.code)
    }

    /// The error as an object on standard output.
    pub(crate) fn print_json(&self) {
        let Failure { kind, code, message } = self;
        let told = json!({ "error": { "kind": kind, "code": code, "message": message } });
        let _ = writeln!(std::io::stdout(), "{told}");
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, code) = match &error {
            Error::Busy { .. } => ("busy", NOT_ACQUIRED),
            Error::Lost { .. } => ("lost", LOST),
            Error::Invalid { .. } => ("usage", USAGE),
            Error::Unsupported { .. } => ("unsupported", UNAVAILABLE),
            Error::Unreachable { .. }
            | Error::Quorum { .. }
            | Error::Unknown { .. }
            | Error::Late { .. }
            | Error::Refused { .. }
            | Error::Untrusted { .. }
            | Error::System { .. } => ("unavailable", UNAVAILABLE),
            _ => ("internal", INTERNAL),
        };
        Failure { kind, code, message: error.to_string() }
    }
}
