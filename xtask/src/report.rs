//! The report: the steps, their durations and results.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Result;
use crate::test_runner::Summary;

#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    tests: Option<Summary>,
}

struct Row {
    step: &'static str,
    took: Duration,
    came_of_it: String,
}

impl Report {
    /// Runs a step, and adds its result to the table, also if it fails.
    pub(crate) fn step(&mut self, step: &'static str, run: impl FnOnce() -> Result<String>) -> Result<()> {
        let started = Instant::now();
        let ran = run();
        let came_of_it = ran.as_ref().map_or_else(|_| "FAILED".to_owned(), Clone::clone);
        self.rows.push(Row { step, took: started.elapsed(), came_of_it });
        ran.map(drop)
    }

    pub(crate) fn append(&mut self, other: Report) {
        self.rows.extend(other.rows);
    }

    /// Runs a [`step`](Report::step) that counts tests.
    pub(crate) fn tests(
        &mut self,
        step: &'static str,
        run: impl FnOnce() -> (Summary, Result<()>),
    ) -> Result<()> {
        let started = Instant::now();
        let (summary, ran) = run();
        let failed = if ran.is_ok() { "" } else { "FAILED: " };
        self.rows.push(Row { step, took: started.elapsed(), came_of_it: format!("{failed}{summary}") });
        // Only a success may end in "0 failed": a crash or a compiler error has no failed test.
        self.tests = ran.is_ok().then_some(summary);
        ran
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{:<10} {:>12}  result", "step", "took")?;
        for row in &self.rows {
            write!(f, "\n{:<10} {:>12}  {}", row.step, shown(row.took), row.came_of_it)?;
        }
        match &self.tests {
            Some(summary) => write!(f, "\n\n{} passed, {} failed", summary.passed, summary.failed),
            None => Ok(()),
        }
    }
}

fn shown(took: Duration) -> String {
    match took.as_secs() {
        0..60 => format!("{:.1} s", took.as_secs_f64()),
        secs => format!("{} min {:02} s", secs / 60, secs % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary { programs: 1, passed: 9, ..Summary::default() }
    }

    #[test]
    fn the_last_line_is_the_count_alone() {
        let mut report = Report::default();
        assert_eq!(report.step("fmt", || Ok("ok".to_owned())), Ok(()));
        assert_eq!(report.tests("test", || (summary(), Ok(()))), Ok(()));
        let text = report.to_string();
        assert_eq!(text.lines().last(), Some("9 passed, 0 failed"), "{text}");
    }

    #[test]
    fn a_run_that_failed_does_not_end_in_a_count() {
        let mut report = Report::default();
        let died = || Err("Cargo ended with signal 11.".to_owned());
        assert_eq!(report.tests("test", || (summary(), died())), died());
        let text = report.to_string();
        assert!(text.contains("FAILED: 1 test programs"), "{text}");
        assert!(!text.lines().any(|line| line == "9 passed, 0 failed"), "{text}");
    }

    #[test]
    fn durations_are_for_people() {
        assert_eq!(shown(Duration::from_millis(440)), "0.4 s");
        assert_eq!(shown(Duration::from_secs(123)), "2 min 03 s");
    }
}
