//! A movable wall clock for a process and its children, by a small shared library (`clock_shim.c`).
//! Other clocks stay as they are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::Home;
use super::child::ChildTest;

const OFFSET_FILE: &str = "LEASEHOLD_TEST_WALL_OFFSET_FILE";

/// The offset, in seconds, of the wall clock of child processes.
pub struct WallClock {
    offset: PathBuf,
    /// The directory of `offset`, in memory: a load moves its clocks 100 times a second, and must
    /// not wait for a busy disk.
    _home: Option<Home>,
}

impl WallClock {
    pub fn new() -> Self {
        let home = super::home_in_memory("clock");
        let clock = WallClock { offset: home.path().join("offset"), _home: Some(home) };
        clock.set(0);
        clock
    }

    /// A separate clock for each process, set by a file of this name in its working directory.
    pub fn of_each(file: &str) -> Self {
        WallClock { offset: file.into(), _home: None }
    }

    /// The movable clock of this process, if it has one.
    pub fn mine() -> Option<Self> {
        let offset = std::env::var_os(OFFSET_FILE)?.into();
        Some(WallClock { offset, _home: None })
    }

    pub fn set(&self, offset_s: i64) {
        // Atomic: a concurrent reader sees the old offset or the new one.
        let new = self.offset.with_extension("new");
        std::fs::write(&new, offset_s.to_string()).unwrap();
        std::fs::rename(&new, &self.offset).unwrap();
    }

    /// Makes a command run under this clock.
    pub fn over<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(OFFSET_FILE, &self.offset).env("LD_PRELOAD", shim())
    }

    /// Runs one test of this program under this clock, and asserts that it passes. Returns its
    /// output, so that the caller can check that the test ran.
    pub fn test(&self, test: ChildTest) -> String {
        let child = self.over(&mut test.command()).output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        said
    }
}

fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let library = super::folder().join("clock_shim.so");
        // Renamed into place: another test program may use the library.
        let new = library.with_extension(std::process::id().to_string());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock_shim.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&new).arg(source).status();
        assert!(built.expect("a C compiler").success(), "the clock shim does not compile");
        std::fs::rename(&new, &library).unwrap();
        library
    })
}
