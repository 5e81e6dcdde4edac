//! Messages on standard error: level, format and colour, set once per process.

use std::io::Write;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{fmt, io};

use anstyle::{AnsiColor, Style};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};
use serde_json::json;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Global, LogFormat, Messages};
use crate::timestamp;

static SETTINGS: OnceLock<Messages> = OnceLock::new();

/// The thread that writes the messages after [`start_thread`].
static THREAD: OnceLock<mpsc::Sender<Entry>> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Error,
    Warn,
    Info,
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

/// Logs even with `--quiet`.
pub(crate) fn error(message: impl fmt::Display) {
    log(Level::Error, message);
}

pub(crate) fn warn(message: impl fmt::Display) {
    if !settings().quiet {
        log(Level::Warn, message);
    }
}

pub(crate) fn info(message: impl fmt::Display) {
    if !settings().quiet {
        log(Level::Info, message);
    }
}

/// Logs with `--verbose`.
pub(crate) fn debug(message: impl fmt::Display) {
    if settings().verbose > 0 {
        log(Level::Debug, message);
    }
}

fn log(level: Level, message: impl fmt::Display) {
    match THREAD.get() {
        Some(thread) => _ = thread.send(Entry::Message(level, message.to_string())),
        None => write(level, message),
    }
}

/// Sets the colours, the format and the levels. `-vv` also opens the log of the library.
pub(crate) fn init(global: &Global) {
    let Messages { verbose, log_format, .. } = global.messages;
    let choice = match global.color {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
    set(global.messages);
    if verbose > 1 {
        let level = if verbose > 2 { LevelFilter::TRACE } else { LevelFilter::DEBUG };
        let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        match log_format {
            LogFormat::Json => log.without_time().with_writer(|| JsonLines).init(),
            LogFormat::Plain | LogFormat::Timestamps => log.with_writer(io::stderr).init(),
        }
    }
}

/// Only the first call has an effect.
pub(crate) fn set(settings: Messages) {
    let _ = SETTINGS.set(settings);
}

pub(crate) fn settings() -> Messages {
    SETTINGS.get().copied().unwrap_or_default()
}

/// Writes one message. Errors are ignored: a closed standard error must not end the command.
fn write(level: Level, message: impl fmt::Display) {
    let (word, style) = level.word_and_style();
    let line = match settings().log_format {
        LogFormat::Plain => format!("{style}leasehold:{style:#} {message}\n"),
        LogFormat::Timestamps => format!("{} {style}leasehold:{style:#} {message}\n", timestamp::now()),
        LogFormat::Json => json_line(word, &message.to_string()),
    };
    let _ = anstream::stderr().write_all(line.as_bytes());
}

/// Writes the error that ends the process, after all earlier messages.
pub(crate) fn last_error(message: impl fmt::Display) {
    flush();
    write(Level::Error, message);
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

#[derive(Debug)]
enum Entry {
    Message(Level, String),
    /// Answered once every earlier message is written.
    Flush(mpsc::Sender<()>),
}

const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The interval of checks whether the terminal accepts writes again.
const TERMINAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the thread that writes messages, so that a stopped reader of standard error does not
/// block the caller. It starts before the command, which may use up the user's threads.
pub(crate) fn start_thread() -> io::Result<()> {
    let (sender, entries) = mpsc::channel();
    std::thread::Builder::new().name("log".to_owned()).spawn(move || {
        for entry in entries {
            match entry {
                Entry::Message(level, message) => {
                    while write_would_stop_process() {
                        std::thread::sleep(TERMINAL_CHECK_INTERVAL);
                    }
                    write(level, message);
                }
                Entry::Flush(done) => drop(done.send(())),
            }
        }
    })?;
    let _ = THREAD.set(sender);
    Ok(())
}

/// Waits until every message is written, for at most [`FLUSH_MAX`].
pub(crate) fn flush() {
    if let Some(thread) = THREAD.get() {
        let (sender, done) = mpsc::channel();
        let _ = thread.send(Entry::Flush(sender));
        let _ = done.recv_timeout(FLUSH_MAX);
    }
}

/// Returns whether a write to standard error would stop this process: it is in the background of a
/// terminal that stops background writers (`stty tostop`).
pub(crate) fn write_would_stop_process() -> bool {
    let stderr = io::stderr();
    let stops = tcgetattr(&stderr).is_ok_and(|mode| mode.local_modes.contains(LocalModes::TOSTOP));
    stops && tcgetpgrp(&stderr).is_ok_and(|group| group != getpgrp())
}
