//! Messages on standard error: level, format and colour.

use std::io::Write;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{fmt, io};

use anstyle::{AnsiColor, Style};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};
use serde_json::json;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Global, LogFormat};
use crate::timestamp;

/// The format of messages: one setting for the whole process, like the colours.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Shown even with `--quiet`.
    Error,
    Warn,
    Info,
    /// Shown with `--verbose`.
    Debug,
}

impl Level {
    fn word_and_style(self) -> (&'static str, Style) {
        match self {
            Level::Error => ("error", AnsiColor::Red.on_default().bold()),
            Level::Warn => ("warn", AnsiColor::Yellow.on_default().bold()),
            Level::Info => ("info", Style::new().bold()),
            Level::Debug => ("debug", Style::new().dimmed()),
        }
    }
}

/// A receiver of messages.
pub(crate) trait Log {
    fn log(&self, level: Level, message: impl fmt::Display);

    fn error(&self, message: impl fmt::Display) {
        self.log(Level::Error, message);
    }

    fn warn(&self, message: impl fmt::Display) {
        self.log(Level::Warn, message);
    }

    fn info(&self, message: impl fmt::Display) {
        self.log(Level::Info, message);
    }

    fn debug(&self, message: impl fmt::Display) {
        self.log(Level::Debug, message);
    }
}

/// Writes messages at once, as far as `--quiet` and `--verbose` allow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logger {
    pub(crate) quiet: bool,
    verbose: u8,
}

impl Log for Logger {
    fn log(&self, level: Level, message: impl fmt::Display) {
        let is_shown = match level {
            Level::Error => true,
            Level::Warn | Level::Info => !self.quiet,
            Level::Debug => self.verbose > 0,
        };
        if is_shown {
            write_message(level, message);
        }
    }
}

impl Logger {
    /// Sets the colours and the format of the process. `-vv` also opens the log of the library.
    pub(crate) fn init(global: &Global) -> Self {
        let Global { quiet, verbose, color, log_format, .. } = *global;
        let choice = match color {
            clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
            clap::ColorChoice::Always => anstream::ColorChoice::Always,
            clap::ColorChoice::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        set_format(log_format);
        if verbose > 1 {
            let level = if verbose > 2 { LevelFilter::TRACE } else { LevelFilter::DEBUG };
            let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
            match log_format {
                LogFormat::Json => log.without_time().with_writer(|| JsonLines).init(),
                LogFormat::Plain | LogFormat::Timestamps => log.with_writer(io::stderr).init(),
            }
        }
        Logger { quiet, verbose }
    }
}

/// Sets the format of the process; the first call counts.
pub(crate) fn set_format(format: LogFormat) {
    let _ = FORMAT.set(format);
}

pub(crate) fn format() -> LogFormat {
    *FORMAT.get().unwrap_or(&LogFormat::Plain)
}

/// Writes one message. A write error is ignored: a closed standard error must not end a command
/// that still runs.
pub(crate) fn write_message(level: Level, message: impl fmt::Display) {
    let (word, style) = level.word_and_style();
    let line = match format() {
        LogFormat::Plain => format!("{style}leasehold:{style:#} {message}\n"),
        LogFormat::Timestamps => format!("{} {style}leasehold:{style:#} {message}\n", timestamp::now()),
        LogFormat::Json => json_line(word, &message.to_string()),
    };
    let _ = anstream::stderr().write_all(line.as_bytes());
}

fn json_line(level: &str, message: &str) -> String {
    format!("{}\n", json!({ "time": timestamp::now(), "level": level, "message": message }))
}

/// Converts each line of the library's log, `LEVEL target: message`, to a JSON object.
struct JsonLines;

impl Write for JsonLines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(text);
        let (level, message) = line.trim().split_once(' ').unwrap_or(("debug", ""));
        io::stderr().write_all(json_line(&level.to_lowercase(), message.trim_start()).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes messages on a thread of its own, so that a reader of standard error that stops reading
/// does not block the caller.
#[derive(Debug, Clone)]
pub(crate) struct LogThread(mpsc::Sender<Entry>);

#[derive(Debug)]
enum Entry {
    Message(Level, String),
    /// Answered once every message before it is written.
    Flush(mpsc::Sender<()>),
}

/// How long `flush` waits.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// How often the thread checks whether the terminal accepts writes again.
const TERMINAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl LogThread {
    /// Starts the thread at once: later, the command may have used up all the threads of the user.
    pub(crate) fn start(logger: Logger) -> io::Result<Self> {
        let (sender, entries) = mpsc::channel();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            for entry in entries {
                match entry {
                    Entry::Message(level, message) => {
                        while write_would_stop_process() {
                            std::thread::sleep(TERMINAL_CHECK_INTERVAL);
                        }
                        logger.log(level, message);
                    }
                    Entry::Flush(done) => drop(done.send(())),
                }
            }
        })?;
        Ok(LogThread(sender))
    }

    /// Waits until every message is written, for at most [`FLUSH_MAX`].
    pub(crate) fn flush(&self) {
        let (sender, done) = mpsc::channel();
        let _ = self.0.send(Entry::Flush(sender));
        let _ = done.recv_timeout(FLUSH_MAX);
    }
}

impl Log for LogThread {
    fn log(&self, level: Level, message: impl fmt::Display) {
        let _ = self.0.send(Entry::Message(level, message.to_string()));
    }
}

/// Whether a write to standard error would stop this process: it is in the background of a terminal
/// that is set to stop background writers (`stty tostop`).
pub(crate) fn write_would_stop_process() -> bool {
    let stderr = io::stderr();
    let stops = tcgetattr(&stderr).is_ok_and(|mode| mode.local_modes.contains(LocalModes::TOSTOP));
    stops && tcgetpgrp(&stderr).is_ok_and(|group| group != getpgrp())
}
