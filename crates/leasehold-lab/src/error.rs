//! What can go wrong with the apparatus itself.

use std::io;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with the apparatus. What a server answers is a [`Reply`](crate::Reply), also where it is an error.
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
    /// The system refused, or a connection broke, or nothing came within the patience of a client.
    #[error(transparent)]
    Io(#[from] io::Error),
}
