//! What is said to people, on standard error: how much of it, and in which colour. Every line says who speaks.

use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io};

use anstyle::{AnsiColor, Style};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};
use tracing_subscriber::filter::LevelFilter;

/// How much is said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Voice {
    quiet: bool,
    verbose: u8,
}

impl Voice {
    pub(crate) fn new(quiet: bool, verbose: u8, color: clap::ColorChoice) -> Self {
        let choice = match color {
            clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
            clap::ColorChoice::Always => anstream::ColorChoice::Always,
            clap::ColorChoice::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        Voice { quiet, verbose }
    }

    /// What has to be known, whatever was asked for.
    pub(crate) fn error(self, what: impl fmt::Display) {
        say(AnsiColor::Red.on_default().bold(), what);
    }

    /// What somebody may have to do something about.
    pub(crate) fn warn(self, what: impl fmt::Display) {
        if !self.quiet {
            say(AnsiColor::Yellow.on_default().bold(), what);
        }
    }

    /// What is good to know.
    pub(crate) fn tell(self, what: impl fmt::Display) {
        if !self.quiet {
            say(Style::new().bold(), what);
        }
    }

    /// What only those want to know who asked for more.
    pub(crate) fn detail(self, what: impl fmt::Display) {
        if self.verbose > 0 {
            say(Style::new().dimmed(), what);
        }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self.quiet
    }

    /// Asked for twice: also what the library has to say.
    pub(crate) fn open_log(self) {
        if self.verbose > 1 {
            let level = if self.verbose > 2 { LevelFilter::TRACE } else { LevelFilter::DEBUG };
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .with_max_level(level)
                .with_ansi(false)
                .init();
        }
    }
}

/// A reader that has gone must not end a command that still runs.
fn say(style: Style, what: impl fmt::Display) {
    use std::io::Write;
    let _ = writeln!(anstream::stderr(), "{style}leasehold:{style:#} {what}");
}

/// The same through a thread of its own: whoever has something better to do must not wait for a reader of standard error
/// who has stopped reading.
#[derive(Debug)]
pub(crate) struct Speaker {
    lines: mpsc::Sender<Line>,
    done: mpsc::Receiver<()>,
}

/// In which tone, and what.
type Line = (fn(Voice, String), String);

/// How long a reader has for what was said last.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often a terminal is asked whether it may be written to.
const ASK_EVERY: Duration = Duration::from_millis(100);

impl Speaker {
    /// The thread is started at once: where a command has taken all there are, it is too late for that.
    pub(crate) fn new(voice: Voice) -> io::Result<Self> {
        let (lines, spoken) = mpsc::channel::<Line>();
        let (ended, done) = mpsc::channel();
        std::thread::Builder::new().name("speaker".to_owned()).spawn(move || {
            for (say, line) in spoken {
                while would_stop_us() {
                    std::thread::sleep(ASK_EVERY);
                }
                say(voice, line);
            }
            let _ = ended.send(());
        })?;
        Ok(Speaker { lines, done })
    }

    pub(crate) fn error(&self, what: String) {
        self.say(Voice::error, what);
    }

    pub(crate) fn warn(&self, what: String) {
        self.say(Voice::warn, what);
    }

    pub(crate) fn tell(&self, what: String) {
        self.say(Voice::tell, what);
    }

    pub(crate) fn detail(&self, what: String) {
        self.say(Voice::detail, what);
    }

    fn say(&self, how: fn(Voice, String), what: String) {
        let _ = self.lines.send((how, what));
    }

    /// Waits until everything is said.
    pub(crate) fn finish(self) {
        drop(self.lines);
        let _ = self.done.recv_timeout(LAST_WORDS);
    }
}

/// A terminal may be set to stop whoever writes to it from the background (`stty tostop`). That would be all of us.
fn would_stop_us() -> bool {
    let stderr = io::stderr();
    let stops = tcgetattr(&stderr).is_ok_and(|mode| mode.local_modes.contains(LocalModes::TOSTOP));
    stops && tcgetpgrp(&stderr).is_ok_and(|group| group != getpgrp())
}
