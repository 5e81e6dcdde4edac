//! Answers on standard output.

use std::fmt;
use std::io::{self, Write};

use serde_json::Value;

use crate::args::Output;
use crate::exit::Failure;

/// The answer of a command in both formats of `--output`, and its exit code.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    json: Value,
    /// Lines for people. Colours are removed if they cannot be shown.
    text: String,
    code: u8,
}

impl Answer {
    pub(crate) fn new(json: Value, text: impl Into<String>) -> Self {
        Answer { json, text: text.into(), code: 0 }
    }

    pub(crate) fn line(json: Value, text: impl fmt::Display) -> Self {
        Answer::new(json, format!("{text}\n"))
    }

    pub(crate) fn with_code(self, code: u8) -> Self {
        Answer { code, ..self }
    }

    /// In text, the exit code is the whole answer.
    pub(crate) fn without_text(self) -> Self {
        Answer { text: String::new(), ..self }
    }

    /// Prints the answer, unless it is empty in this format; returns the exit code.
    pub(crate) fn print(self, output: Output) -> Result<u8, Failure> {
        match output {
            Output::Json if !self.json.is_null() => print(format!("{}\n", self.json))?,
            Output::Text if !self.text.is_empty() => written(&mut anstream::stdout(), self.text.as_bytes())?,
            Output::Json | Output::Text => {}
        }
        Ok(self.code)
    }
}

pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    written(&mut io::stdout(), text.as_ref())
}

/// A closed pipe (`leasehold ls | head -1`) is a failure without a message.
fn written(stdout: &mut impl Write, text: &[u8]) -> Result<(), Failure> {
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::internal(""),
        _ => Failure::internal(format!("standard output: {error}")),
    })
}
