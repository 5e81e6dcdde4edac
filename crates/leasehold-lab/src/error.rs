//! What can go wrong with the apparatus itself.

use std::io;
use std::path::PathBuf;

/// What a call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with the apparatus. What a server answers is a [`Reply`](crate::Reply), also where it is an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program of a server is not on this machine.
    #[error("`{0}` is not on this machine; `cargo xtask test` installs it")]
    NoProgram(&'static str),
    /// A server did not come up.
    #[error("`{}` did not start: {why}; its log:\n{log}", program.display())]
    NotStarted {
        /// What was run.
        program: PathBuf,
        /// What was seen of it.
        why: String,
        /// What it wrote.
        log: String,
    },
    /// Something was asked of a server that does not run.
    #[error("the server does not run")]
    NotRunning,
    /// A server did not end when it was told to.
    #[error("the server did not end within {0:?}")]
    NotEnded(std::time::Duration),
    /// A server answered what makes no sense here.
    #[error("unexpected answer to {asked}: {answer}")]
    Unexpected {
        /// The command.
        asked: String,
        /// The answer.
        answer: String,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Certificate(#[from] rcgen::Error),
    /// The system refused, or a connection broke, or nothing came within the patience of a client.
    #[error(transparent)]
    Io(#[from] io::Error),
}
