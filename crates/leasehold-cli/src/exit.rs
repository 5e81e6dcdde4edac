//! Exit codes, and the failures that end a command with one.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use leasehold::Error;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Output;
use crate::log;

// The codes of sysexits.h, of `timeout` and of shells, if those have one.
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
/// The command ran, and the store did not confirm `--once-per` or `--at-least`.
pub(crate) const NOT_RECORDED: u8 = 74;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const CONFIGURATION: u8 = 78;
pub(crate) const LOST: u8 = 79;
pub(crate) const TOO_LONG: u8 = 124;
pub(crate) const INTERNAL: u8 = 125;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// The reason of a failure, which `--output json` shows in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Usage,
    Configuration,
    Internal,
    Busy,
    Closed,
    Limited,
    Lost,
    /// The holder to evict does not hold the lock. `unlock` also ends with this code.
    NotHeld,
    Unsupported,
    /// The store cannot be used now, but perhaps later.
    Unavailable,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Usage => USAGE,
            Kind::Configuration => CONFIGURATION,
            Kind::Internal => INTERNAL,
            Kind::Busy | Kind::Closed | Kind::Limited => NOT_ACQUIRED,
            Kind::Lost | Kind::NotHeld => LOST,
            Kind::Unsupported | Kind::Unavailable => UNAVAILABLE,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) code: u8,
    /// Printed on standard error, unless it is empty.
    pub(crate) message: String,
    /// Added to the output of `--output json`: an object, or null.
    pub(crate) details: Value,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure { kind, code: kind.code(), message: message.into(), details: Value::Null }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(Kind::Usage, message)
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Failure::new(Kind::Configuration, message)
    }

    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Failure::new(Kind::Internal, message.to_string())
    }

    /// The lock is held, and the time to wait for it is over.
    pub(crate) fn busy(code: u8, error: &Error) -> Self {
        let message = format!("{error}; come back later, or wait for it (longer) with --wait");
        Failure { code, ..Failure::new(Kind::Busy, message) }
    }

    pub(crate) fn and(mut self, more: &str) -> Self {
        self.message += more;
        self
    }

    pub(crate) fn report(&self, output: Output) -> ExitCode {
        if !self.message.is_empty() {
            log::last_error(&self.message);
            if output == Output::Json {
                self.print_json();
            }
        }
        ExitCode::from(self.code)
    }

    pub(crate) fn print_json(&self) {
        let mut object = self.details.clone();
        object["error"] = json!({ "kind": self.kind, "code": self.code, "message": self.message });
        let _ = writeln!(std::io::stdout(), "{object}");
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Busy { .. } => Kind::Busy,
            Error::Lost { .. } => Kind::Lost,
            Error::Invalid { .. } => Kind::Usage,
            Error::Unsupported { .. } => Kind::Unsupported,
            Error::Unreachable { .. }
            | Error::Quorum { .. }
            | Error::Unknown { .. }
            | Error::Late { .. }
            | Error::Refused { .. }
            | Error::Untrusted { .. }
            | Error::System { .. } => Kind::Unavailable,
            _ => Kind::Internal,
        };
        Failure::new(kind, error.to_string())
    }
}

/// The first part of an error message. The advice after it is for a command that has failed.
pub(crate) fn without_advice(message: &str) -> &str {
    message.split("; ").next().unwrap_or_default()
}
