//! `test`, `soak` and `bench`: which calls of cargo they are made of.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::cargo::Cargo;
use crate::report::Report;
use crate::test_program::TestProgram;
use crate::test_runner::{self, Settings, Summary};
use crate::{features, install, package};

/// The bench targets that bring their own `main` (`harness = false`). They are named one by one, because
/// `--benches` would also start every library and binary with arguments meant for a benchmark.
const BENCHES: &[&str] = &["cache", "cells", "core", "file", "quorum", "redis", "run"];

/// The part of its full length at which a long proof runs; the tests read it from the environment.
const SCALE: &str = "LEASEHOLD_SCALE";

/// How many tests run at a time, where the environment says so.
const JOBS: &str = "LEASEHOLD_TEST_JOBS";

/// A part of `cargo xtask test` that can be run alone.
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
    /// In the order they are run: the quick ones first.
    pub(crate) const ALL: [Step; 6] =
        [Step::Fmt, Step::Features, Step::Clippy, Step::Doc, Step::Package, Step::Test];

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
            Step::Test => report.tests(self.name(), || tests(&settings("0.1", None))),
        }
    }
}

/// Everything a change has to pass, or one step of it. Stops at the first that fails.
pub(crate) fn test(only: Option<Step>) -> Result<()> {
    let mut report = Report::default();
    let ran = run(&mut report, only);
    println!("{report}");
    ran
}

/// The tests at full length, with the figures that they print.
pub(crate) fn soak(filter: Option<&str>) -> Result<()> {
    let settings = settings("1", filter);
    let mut report = Report::default();
    let ran =
        report.step("programs", install::install).and_then(|()| report.tests("soak", || tests(&settings)));
    println!("{report}");
    let again = filter.map_or_else(String::new, |filter| format!(" {filter}"));
    ran.map_err(|why| format!("The soak failed. {why} To run it again: cargo xtask soak{again}"))
}

/// The benchmarks; they print markdown themselves.
pub(crate) fn bench(filter: Option<&str>) -> Result<()> {
    let call = Cargo::new("bench --workspace --all-features");
    let call = BENCHES.iter().fold(call, |call, bench| call.arg("--bench").arg(*bench));
    let call = filter.into_iter().fold(call, |call, filter| call.arg("--").arg(filter));
    call.run().map_err(|why| format!("A benchmark failed. {why}"))
}

/// Installs the programs that the tests need while the steps before the tests run.
fn run(report: &mut Report, only: Option<Step>) -> Result<()> {
    let steps: Vec<Step> =
        Step::ALL.into_iter().filter(|step| only.is_none_or(|only| only == *step)).collect();
    let needs_programs = steps.contains(&Step::Test);
    if needs_programs {
        install::check()?;
    }
    // The scope waits for the installation also if a step fails: apt-get must not be interrupted.
    thread::scope(|scope| {
        let mut installing = needs_programs.then(|| scope.spawn(install::install));
        for step in steps {
            if let Some(installing) = installing.take_if(|_| step == Step::Test) {
                let wait =
                    || installing.join().unwrap_or_else(|_| Err("The installation panicked.".to_owned()));
                report.step("programs", wait)?;
            }
            let name = step.name();
            step.run(report).map_err(|why| {
                format!("Step `{name}` failed. {why} To run it again, alone: cargo xtask test --only {name}")
            })?;
        }
        Ok(())
    })
}

fn settings(scale: &str, filter: Option<&str>) -> Settings {
    let is_soak = scale == "1";
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    Settings {
        env: vec![(SCALE, scale.to_owned())],
        filter: filter.map(str::to_owned),
        // Most tests wait for most of their time.
        jobs: std::env::var(JOBS).ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2 * processors),
        // Longer than the tests' own limits, which say more about what hangs.
        time_limit: Duration::from_secs(if is_soak { 3600 } else { 1200 }),
        shows_output: is_soak,
    }
}

/// Compiles the test programs, runs their tests and then those in the documentation.
fn tests(settings: &Settings) -> (Summary, Result<()>) {
    let programs = match TestProgram::compile_all("--all-features") {
        Ok(programs) => programs,
        Err(why) => return (Summary::default(), Err(why)),
    };
    let (mut summary, ran) = test_runner::run(&programs, settings);
    summary.print_slowest();
    let ran = ran.and_then(|()| match settings.filter {
        Some(_) => Ok(()),
        None => doc_tests().map(|passed| summary.passed += passed),
    });
    (summary, ran)
}

/// Runs the tests in the documentation; returns how many passed.
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
