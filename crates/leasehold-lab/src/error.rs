//! The errors of the laboratory itself.

use std::io;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

/// An error of the laboratory. An error that a server answers is a [`Reply`](crate::Reply).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("`{0}` is not on this machine; `cargo xtask test` installs it")]
    NoProgram(&'static str),
    #[error("`{}` did not start: {why}; its log:\n{log}", program.display())]
    NotStarted { program: PathBuf, why: String, log: String },
    #[error("the server does not run")]
    NotRunning,
    #[error("the server did not end within {0:?}")]
    NotEnded(std::time::Duration),
    #[error("unexpected answer to {asked}: {answer}")]
    Unexpected { asked: String, answer: String },
    #[error(transparent)]
    Certificate(#[from] rcgen::Error),
    /// The system refused, a connection broke, or a client timed out.
    #[error(transparent)]
    Io(#[from] io::Error),
}
