//! A wall clock that can be moved, for one process and its children: a small shared library (`clock_shim.c`) stands
//! between it and the system. No other clock is touched.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::Home;
use super::child::ChildTest;

const OFFSET_FILE: &str = "LEASEHOLD_TEST_WALL_OFFSET_FILE";

/// The seconds by which the wall clock is off in processes that are started under it.
pub struct WallClock {
    offset: PathBuf,
    /// Holds the file of a clock that this process made. In memory: a load moves its clocks a hundred times a second, and must not
    /// wait for a busy disk.
    _home: Option<Home>,
}

impl WallClock {
    /// A clock that is right until it is set.
    pub fn new() -> Self {
        let home = super::home_in_memory("clock");
        let clock = WallClock { offset: home.path().join("offset"), _home: Some(home) };
        clock.set(0);
        clock
    }

    /// A clock for each process that is started under it: by a file of this name in the directory that the process runs in.
    pub fn of_each(file: &str) -> Self {
        WallClock { offset: file.into(), _home: None }
    }

    /// The one that this process was started under, if it was.
    pub fn mine() -> Option<Self> {
        let offset = std::env::var_os(OFFSET_FILE)?.into();
        Some(WallClock { offset, _home: None })
    }

    /// Moves it, at once.
    pub fn set(&self, offset_s: i64) {
        // A process that reads it meanwhile finds the old offset or the new one.
        let new = self.offset.with_extension("new");
        std::fs::write(&new, offset_s.to_string()).unwrap();
        std::fs::rename(&new, &self.offset).unwrap();
    }

    /// Has a process run under it.
    pub fn over<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(OFFSET_FILE, &self.offset).env("LD_PRELOAD", shim())
    }

    /// Runs one test of this program under it, which has to pass. Returns what the test printed, so
    /// that the caller can check that it ran.
    pub fn test(&self, test: ChildTest) -> String {
        let child = self.over(&mut test.command()).output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        said
    }
}

/// Builds the library, once in this process.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let library = super::folder().join("clock_shim.so");
        // Another test program may be running under it.
        let new = library.with_extension(std::process::id().to_string());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock_shim.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&new).arg(source).status();
        assert!(built.expect("a C compiler").success(), "the clock shim does not compile");
        std::fs::rename(&new, &library).unwrap();
        library
    })
}
