//! What is said to people, on standard error: how much of it, and in which colour. Every line says who speaks.

use std::io::Write;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{fmt, io};

use anstyle::{AnsiColor, Style};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};
use serde_json::json;
use tracing_subscriber::filter::LevelFilter;

use crate::args::LogFormat;
use crate::timestamp;

/// How lines are written: one setting for the whole process, like the colours.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// How much is said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logger {
    quiet: bool,
    verbose: u8,
}

impl Logger {
    pub(crate) fn new(quiet: bool, verbose: u8, color: clap::ColorChoice, format: LogFormat) -> Self {
        let choice = match color {
            clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
            clap::ColorChoice::Always => anstream::ColorChoice::Always,
            clap::ColorChoice::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        set_format(format);
        Logger { quiet, verbose }
    }

    /// What has to be known, whatever was asked for.
    pub(crate) fn error(self, what: impl fmt::Display) {
        say(Level::Error, what);
    }

    /// What somebody may have to do something about.
    pub(crate) fn warn(self, what: impl fmt::Display) {
        if !self.quiet {
            say(Level::Warn, what);
        }
    }

    /// What is good to know.
    pub(crate) fn tell(self, what: impl fmt::Display) {
        if !self.quiet {
            say(Level::Info, what);
        }
    }

    /// What only those want to know who asked for more.
    pub(crate) fn detail(self, what: impl fmt::Display) {
        if self.verbose > 0 {
            say(Level::Debug, what);
        }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self.quiet
    }

    pub(crate) fn is_plain(self) -> bool {
        format() == LogFormat::Plain
    }

    /// Asked for twice: also what the library has to say.
    pub(crate) fn open_log(self) {
        if self.verbose > 1 {
            let level = if self.verbose > 2 { LevelFilter::TRACE } else { LevelFilter::DEBUG };
            let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
            match format() {
                LogFormat::Json => log.without_time().with_writer(|| JsonLines).init(),
                LogFormat::Plain | LogFormat::Timestamps => log.with_writer(io::stderr).init(),
            }
        }
    }
}

/// For a process that has no `Logger`; the first call counts.
pub(crate) fn set_format(format: LogFormat) {
    let _ = FORMAT.set(format);
}

pub(crate) fn format() -> LogFormat {
    *FORMAT.get().unwrap_or(&LogFormat::Plain)
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    fn style(self) -> Style {
        match self {
            Level::Error => AnsiColor::Red.on_default().bold(),
            Level::Warn => AnsiColor::Yellow.on_default().bold(),
            Level::Info => Style::new().bold(),
            Level::Debug => Style::new().dimmed(),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// A reader that has gone must not end a command that still runs.
pub(crate) fn say(level: Level, what: impl fmt::Display) {
    let style = level.style();
    let line = match format() {
        LogFormat::Plain => format!("{style}leasehold:{style:#} {what}\n"),
        LogFormat::Timestamps => format!("{} {style}leasehold:{style:#} {what}\n", timestamp::now()),
        LogFormat::Json => json_line(level.word(), &what.to_string()),
    };
    let _ = anstream::stderr().write_all(line.as_bytes());
}

fn json_line(level: &str, message: &str) -> String {
    format!("{}\n", json!({ "time": timestamp::now(), "level": level, "message": message }))
}

/// Makes an object of each line of the library's log: `LEVEL target: message`.
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

/// The same through a thread of its own: whoever has something better to do must not wait for a reader of standard error
/// who has stopped reading.
#[derive(Debug)]
pub(crate) struct LogThread {
    lines: Lines,
    done: mpsc::Receiver<()>,
}

/// The way to the speaker's thread.
#[derive(Debug, Clone)]
pub(crate) struct Lines(mpsc::Sender<Option<Line>>);

/// In which tone, and what.
type Line = (fn(Logger, String), String);

/// How long a reader has for what was said last.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often a terminal is asked whether it may be written to.
const ASK_EVERY: Duration = Duration::from_millis(100);

impl LogThread {
    /// The thread is started at once: where a command has taken all there are, it is too late for that.
    pub(crate) fn new(voice: Logger) -> io::Result<Self> {
        let (lines, spoken) = mpsc::channel::<Option<Line>>();
        let (ended, done) = mpsc::channel();
        std::thread::Builder::new().name("speaker".to_owned()).spawn(move || {
            // `None` is the last.
            for (say, line) in spoken.into_iter().map_while(|line| line) {
                while would_stop_us() {
                    std::thread::sleep(ASK_EVERY);
                }
                say(voice, line);
            }
            let _ = ended.send(());
        })?;
        Ok(LogThread { lines: Lines(lines), done })
    }

    /// For another thread to speak through.
    pub(crate) fn lines(&self) -> Lines {
        self.lines.clone()
    }

    pub(crate) fn error(&self, what: String) {
        self.lines.say(Logger::error, what);
    }

    pub(crate) fn warn(&self, what: String) {
        self.lines.warn(what);
    }

    pub(crate) fn tell(&self, what: String) {
        self.lines.tell(what);
    }

    pub(crate) fn detail(&self, what: String) {
        self.lines.say(Logger::detail, what);
    }

    /// Waits until everything is said.
    pub(crate) fn finish(self) {
        let _ = self.lines.0.send(None);
        let _ = self.done.recv_timeout(LAST_WORDS);
    }
}

impl Lines {
    pub(crate) fn warn(&self, what: String) {
        self.say(Logger::warn, what);
    }

    pub(crate) fn tell(&self, what: String) {
        self.say(Logger::tell, what);
    }

    fn say(&self, how: fn(Logger, String), what: String) {
        let _ = self.0.send(Some((how, what)));
    }
}

/// A terminal may be set to stop whoever writes to it from the background (`stty tostop`). That would be all of us.
pub(crate) fn would_stop_us() -> bool {
    let stderr = io::stderr();
    let stops = tcgetattr(&stderr).is_ok_and(|mode| mode.local_modes.contains(LocalModes::TOSTOP));
    stops && tcgetpgrp(&stderr).is_ok_and(|group| group != getpgrp())
}
