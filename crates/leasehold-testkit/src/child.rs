//! Child processes of a test: the test program itself, run for one of its tests.

use std::process::Command;

/// The test whose body the process runs.
const OWN_PROCESS: &str = "LEASEHOLD_TEST_OWN_PROCESS";

/// A test of this program, for a child process to run. [`child_test!`](crate::child_test) makes it.
///
/// The test harness reports success for a wrong name. So the macro takes a function, which has to
/// exist, and every user of a child checks that the child did its work.
#[derive(Debug, Clone, Copy)]
pub struct ChildTest {
    module: &'static str,
    function: &'static str,
}

/// The [`ChildTest`](crate::child::ChildTest) of a test in the calling module.
#[macro_export]
macro_rules! child_test {
    ($function:ident) => {
        $crate::child::ChildTest::new(module_path!(), stringify!($function), $function)
    };
}

impl ChildTest {
    /// Expansion of [`child_test!`](crate::child_test). `_test` proves that the function exists.
    pub const fn new(module: &'static str, function: &'static str, _test: fn()) -> Self {
        ChildTest { module, function }
    }

    /// The test's name in the test harness: its path without the crate.
    pub fn path(&self) -> String {
        match self.module.split_once("::") {
            Some((_, module)) => format!("{module}::{}", self.function),
            None => self.function.to_owned(),
        }
    }

    pub fn args(&self) -> [String; 3] {
        ["--exact".to_owned(), self.path(), "--nocapture".to_owned()]
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(self.args());
        command
    }

    /// Runs the body of the calling test in a process without other tests, for a test that depends
    /// on the state of the whole process: its log subscriber, open files or processor time.
    pub fn in_own_process(&self, body: impl FnOnce()) {
        let done = format!("{} is done", self.path());
        if std::env::var(OWN_PROCESS).is_ok_and(|path| path == self.path()) {
            body();
            println!("{done}");
            return;
        }
        let output = self.command().env(OWN_PROCESS, self.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        print!("{printed}");
        let is_done = output.status.success() && printed.contains(&done);
        assert!(is_done, "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}
