//! How the command ends: one exit code and one message for each kind of failure.

use std::fmt;
use std::process::ExitCode;

use leasehold::Error;

/// Of sysexits.h where it has one, and of `timeout` and shells where those do.
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const CONFIGURATION: u8 = 78;
pub(crate) const LOST: u8 = 79;
pub(crate) const INTERNAL: u8 = 125;

/// Why it did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { code: USAGE, message: message.into() }
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Failure { code: CONFIGURATION, message: message.into() }
    }

    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Failure { code: INTERNAL, message: message.to_string() }
    }

    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            eprintln!("leasehold: {}", self.message);
        }
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Busy { .. } => NOT_ACQUIRED,
            Error::Lost { .. } => LOST,
            Error::Invalid { .. } => USAGE,
            Error::Unreachable { .. }
            | Error::Unknown { .. }
            | Error::Late { .. }
            | Error::Refused { .. }
            | Error::Unsupported { .. }
            | Error::System { .. } => UNAVAILABLE,
            _ => INTERNAL,
        };
        Failure { code, message: error.to_string() }
    }
}
