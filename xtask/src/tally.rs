//! Counts tests in the output of `cargo test` while it passes by.

use std::fmt;

/// What `cargo test` has said so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Test binaries that were started.
    binaries: u64,
    /// Crates whose documentation was tested.
    documented: u64,
    /// Of both, those that ended without a result: aborted, killed, or exited half-way.
    pub(crate) unfinished: u64,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    ignored: u64,
    /// One was started, and has shown no result yet. (Documentation may show two.)
    pending: bool,
    line: Vec<u8>,
}

impl Tally {
    /// The next piece of output; it need not end where a line does.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.see(&without_colours(&String::from_utf8_lossy(&line)));
            } else {
                self.line.push(byte);
            }
        }
    }

    /// There is no more output.
    pub(crate) fn finish(&mut self) {
        self.feed(b"\n");
        self.settle();
    }

    fn see(&mut self, line: &str) {
        // Cargo sets its verbs flush right in twelve columns. A test that prints "Running" does not.
        if line.starts_with("     Running ") {
            self.settle();
            self.binaries += 1;
            self.pending = true;
        } else if line.starts_with("   Doc-tests ") {
            self.settle();
            self.documented += 1;
            self.pending = true;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.pending = false;
            self.passed += count(result, "passed");
            self.failed += count(result, "failed");
            self.ignored += count(result, "ignored");
        }
    }

    fn settle(&mut self) {
        self.unfinished += u64::from(std::mem::take(&mut self.pending));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { binaries, documented, passed, failed, .. } = self;
        write!(
            f,
            "{binaries} test binaries, doc tests of {documented} crates: {passed} passed, {failed} failed"
        )?;
        if self.ignored > 0 {
            write!(f, ", {} ignored", self.ignored)?;
        }
        if self.unfinished > 0 {
            write!(f, ", {} ended without a result", self.unfinished)?;
        }
        Ok(())
    }
}

/// The number before `what` in "ok. 5 passed; 0 failed; …"; 0 where there is none.
fn count(result: &str, what: &str) -> u64 {
    let words: Vec<&str> = result.split([' ', ';']).collect();
    words.windows(2).find(|pair| pair[1] == what).and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// Cuts out `ESC [ … letter`, which colours a terminal.
fn without_colours(line: &str) -> String {
    let mut pieces = line.split("\x1b[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain.push_str(piece.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        // In pieces that fit no line.
        output.as_bytes().chunks(7).for_each(|chunk| tally.feed(chunk));
        tally.finish();
        tally
    }

    #[test]
    fn binaries_doc_tests_and_results_are_counted() {
        let tally = tally(
            "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\nrunning 2 tests\ntest x ... ok\n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             \x20    Running tests/b.rs (target/debug/deps/b-1)\n\
             test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n\
             \x20  Doc-tests a\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
        );
        assert_eq!(
            tally.to_string(),
            "2 test binaries, doc tests of 1 crates: 11 passed, 4 failed, 1 ignored"
        );
    }

    #[test]
    fn colours_do_not_hide_a_result() {
        let tally = tally(
            "\x1b[1m\x1b[92m     Running\x1b[0m tests/b.rs\ntest result: \x1b[32mok\x1b[0m. 2 passed; 0 failed;",
        );
        assert_eq!((tally.binaries, tally.passed, tally.unfinished), (1, 2, 0));
    }

    #[test]
    fn a_binary_that_dies_half_way_is_not_overlooked() {
        let tally = tally(
            "     Running tests/a.rs (a)\n\nrunning 9 tests\nerror: test failed\n     Running tests/b.rs (b)\n\
             test result: ok. 1 passed; 0 failed; 0 ignored\n     Running tests/c.rs (c)\n",
        );
        assert_eq!((tally.binaries, tally.passed, tally.failed, tally.unfinished), (3, 1, 0, 2));
    }

    #[test]
    fn what_a_test_prints_is_not_taken_for_cargos_words() {
        let tally = tally("Running amok\n  test result: ok. 7 passed; 0 failed\nDoc-tests are nice\n");
        assert_eq!(tally, Tally::default());
    }
}
