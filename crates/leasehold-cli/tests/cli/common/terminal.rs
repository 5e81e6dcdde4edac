//! A shell at a pseudo-terminal, with a person who types and reads.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::time::Timespec;

use super::{Home, LONG, until};

pub(crate) struct Terminal {
    shell: Child,
    /// Our end of it; `None` once it is gone.
    keys: Option<File>,
    /// What was shown and not looked for yet.
    shown: String,
}

/// What `PS1` is, so that it is not taken for anything else.
const PROMPT: &str = "ready> ";

impl Terminal {
    /// An interactive shell, with `leasehold` in its path.
    pub(crate) fn open(home: &Home) -> Self {
        let mut terminal = Terminal::of(home, &["bash", "--norc", "--noprofile", "-i"]);
        terminal.see(PROMPT);
        terminal
    }

    /// A program that leads the session of a terminal of its own.
    pub(crate) fn of(home: &Home, program: &[&str]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
        // Wide, so that the shell shows a line as one.
        let size = Winsize { ws_row: 50, ws_col: 500, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keys, size).unwrap();
        let end = || Stdio::from(File::options().read(true).write(true).open(&path).unwrap());
        let binary = assert_cmd::cargo::cargo_bin("leasehold");
        let with_ours = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let shell = Command::new("setsid")
            .args(["--ctty", "env", super::UNIGNORED])
            .args(program)
            .env_clear()
            .env("HOME", home.path())
            .env("PATH", with_ours)
            .env("PS1", PROMPT)
            .env("TERM", "dumb")
            .current_dir(home.path())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Terminal { shell, keys: Some(File::from(keys)), shown: String::new() }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line, and waits until the terminal has echoed it.
    pub(crate) fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
        self.see(line);
        self.see("\n");
    }

    /// Types a line, waits for the prompt, and says what was shown between.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.enter(line);
        self.see(PROMPT)
    }

    /// Until this is shown; what was shown before it.
    pub(crate) fn see(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                let before = self.shown[..at].to_owned();
                self.shown.drain(..at + text.len());
                return before;
            }
            assert!(start.elapsed() < LONG, "`{text}` was not shown, but: {:?}", self.shown);
            let keys = self.keys.as_mut().unwrap();
            let mut fds = [PollFd::new(keys, PollFlags::IN)];
            let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            if poll(&mut fds, Some(&moment)).unwrap_or(0) > 0 {
                let mut bytes = [0; 4096];
                let n = keys.read(&mut bytes).unwrap_or(0);
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        }
    }

    /// Back at the prompt: what the last command's exit code was.
    pub(crate) fn code(&mut self) -> i32 {
        let told = self.ask("echo code=$?.");
        let code = told.split("code=").nth(1).and_then(|rest| rest.split('.').next());
        code.and_then(|code| code.trim().parse().ok()).unwrap_or_else(|| panic!("{told:?}"))
    }

    /// Somebody closes the window: the shell hears of it, and tells its jobs.
    pub(crate) fn hang_up(mut self) {
        kill_process(Pid::from_child(&self.shell), Signal::HUP).unwrap();
        until(|| self.shell.try_wait().unwrap().is_some(), "the shell to end");
    }

    /// The line breaks.
    pub(crate) fn break_off(&mut self) {
        self.keys = None;
    }

    pub(crate) fn see_prompt(&mut self) -> String {
        self.see(PROMPT)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
