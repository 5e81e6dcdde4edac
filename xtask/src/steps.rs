//! `test`, `soak` and `bench`: the steps and their calls of cargo.

use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::Result;
use crate::cargo::Cargo;
use crate::report::Report;
use crate::test_program::TestProgram;
use crate::test_runner::{self, Settings, Summary};
use crate::{features, install, package};

/// The benches with their own `main` (`harness = false`). `--benches` would also start every
/// library and binary with arguments for a benchmark.
const BENCHES: &[&str] = &["cache", "cells", "core", "file", "quorum", "redis", "run"];

/// The variable with the part of its full length at which a long proof runs.
const SCALE: &str = "LEASEHOLD_SCALE";

/// The variable with the number of tests that run at a time.
const JOBS: &str = "LEASEHOLD_TEST_JOBS";

/// A part of `cargo xtask test` that can run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Fmt,
    Features,
    Clippy,
    Doc,
    Package,
    Test,
}

impl Step {
    pub(crate) const ALL: [Step; 6] =
        [Step::Fmt, Step::Features, Step::Clippy, Step::Doc, Step::Package, Step::Test];

    /// The steps that compile and run no tests.
    const CHECKS: [Step; 4] = [Step::Clippy, Step::Doc, Step::Features, Step::Package];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Fmt => "fmt",
            Step::Features => "features",
            Step::Clippy => "clippy",
            Step::Doc => "doc",
            Step::Package => "package",
            Step::Test => "test",
        }
    }

    fn run(self, report: &mut Report) -> Result<()> {
        let mut step =
            |run: &dyn Fn() -> Result<()>| report.step(self.name(), || run().map(|()| "ok".to_owned()));
        match self {
            Step::Fmt => step(&|| Cargo::new("fmt --all --check").run()),
            Step::Features => step(&|| {
                features::each_alone().iter().try_for_each(Cargo::run)?;
                features::resolve_beside_sqlx()
            }),
            Step::Clippy => {
                step(&|| Cargo::new("clippy --workspace --all-targets --all-features -- -D warnings").run())
            }
            Step::Doc => step(&|| {
                Cargo::new("doc --workspace --no-deps --all-features")
                    .env("RUSTDOCFLAGS", "-D warnings")
                    .run()
            }),
            Step::Package => step(&package::check),
            Step::Test => {
                report.step("programs", install::install)?;
                let programs = compile(report)?;
                report.tests(self.name(), || tests(&programs, &settings("0.1", None), || ()))
            }
        }
        .map_err(|why| self.failed(&why))
    }

    /// Runs the step as a process with the lowest priority, so that it takes no time from the
    /// tests. Prints the output of a step that fails.
    fn run_beside_tests(self) -> Result<String> {
        println!("==> cargo xtask test --only {}", self.name());
        let xtask = std::env::current_exe().map_err(|error| format!("xtask was not found: {error}."))?;
        let output = Command::new("nice")
            .args(["-n", "19"])
            .arg(xtask)
            .args(["test", "--only", self.name()])
            .output()
            .map_err(|error| format!("`nice` could not be started: {error}."))?;
        if output.status.success() {
            return Ok("ok".to_owned());
        }
        print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Err(self.failed(""))
    }

    fn failed(self, why: &str) -> String {
        let name = self.name();
        format!("Step `{name}` failed. {why} To run it again, alone: cargo xtask test --only {name}")
    }
}

/// Runs all steps that a change has to pass, or one of them.
pub(crate) fn test(only: Option<Step>) -> Result<()> {
    let mut report = Report::default();
    let ran = match only {
        Some(step) => step.run(&mut report),
        None => all(&mut report),
    };
    println!("{report}");
    ran
}

/// Runs all steps. The programs for the tests are installed while the tests compile, and the other
/// checks run beside the tests, which mostly wait.
fn all(report: &mut Report) -> Result<()> {
    install::check()?;
    Step::Fmt.run(report)?;
    // The scope waits for the installation even if a step fails: apt-get must not be interrupted.
    let programs = thread::scope(|scope| {
        let installing = scope.spawn(install::install);
        let programs = compile(report);
        let installed = installing.join().unwrap_or_else(|_| Err("The installation panicked.".to_owned()));
        report.step("programs", || installed)?;
        programs
    })?;
    let (mut checks, mut checked) = (Report::default(), Ok(()));
    let tested = report.tests("test", || {
        tests(&programs, &settings("0.1", None), || {
            let mut check = |step: Step| checks.step(step.name(), || step.run_beside_tests());
            checked = Step::CHECKS.into_iter().try_for_each(&mut check);
        })
    });
    report.append(checks);
    checked.and(tested.map_err(|why| Step::Test.failed(&why)))
}

fn compile(report: &mut Report) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    report.step("compile", || {
        programs = TestProgram::compile_all("--all-features")?;
        Ok(format!("{} test programs", programs.len()))
    })?;
    Ok(programs)
}

pub(crate) fn soak(filter: Option<&str>) -> Result<()> {
    let settings = settings("1", filter);
    let mut report = Report::default();
    let ran = report
        .step("programs", install::install)
        .and_then(|()| compile(&mut report))
        .and_then(|programs| report.tests("soak", || tests(&programs, &settings, || ())));
    println!("{report}");
    let again = filter.map_or_else(String::new, |filter| format!(" {filter}"));
    ran.map_err(|why| format!("The soak failed. {why} To run it again: cargo xtask soak{again}"))
}

pub(crate) fn bench(filter: Option<&str>) -> Result<()> {
    let call = Cargo::new("bench --workspace --all-features");
    let call = BENCHES.iter().fold(call, |call, bench| call.arg("--bench").arg(*bench));
    let call = filter.into_iter().fold(call, |call, filter| call.arg("--").arg(filter));
    call.run().map_err(|why| format!("A benchmark failed. {why}"))
}

fn settings(scale: &str, filter: Option<&str>) -> Settings {
    let is_soak = scale == "1";
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    Settings {
        env: vec![(SCALE, scale.to_owned())],
        filter: filter.map(str::to_owned),
        // Most tests wait for much of their time.
        jobs: std::env::var(JOBS).ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2 * processors),
        waiting_jobs: processors,
        // Longer than the tests' own limits, which say more about what hangs.
        time_limit: Duration::from_secs(if is_soak { 3600 } else { 1200 }),
        shows_output: is_soak,
    }
}

/// Runs the tests of these programs, then those in the docs; runs `beside` at the same time.
fn tests(
    programs: &[TestProgram],
    settings: &Settings,
    beside: impl FnOnce() + Send,
) -> (Summary, Result<()>) {
    let (mut summary, ran) = test_runner::run(programs, settings, beside);
    summary.print_slowest();
    let ran = ran.and_then(|()| match settings.filter {
        Some(_) => Ok(()),
        None => doc_tests().map(|passed| summary.passed += passed),
    });
    (summary, ran)
}

/// Runs the tests in the docs; returns the number that passed.
///
/// `--doc` overrides `doctest = false`, so the crates that have it are excluded by name.
fn doc_tests() -> Result<usize> {
    let call = Cargo::new("test --workspace --all-features --doc")
        .arg("--exclude=leasehold-schedules")
        .arg("--exclude=leasehold-testkit");
    let output = call.printed_output()?;
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    Ok(results.filter_map(|result| result.split(' ').next()?.parse::<usize>().ok()).sum())
}
