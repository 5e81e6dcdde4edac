//! `test`, `soak` and `bench`: which calls of cargo they are made of.

use crate::Result;
use crate::cargo::Cargo;
use crate::programs;
use crate::report::Report;
use crate::tally::Tally;
use crate::{company, features, package, valkey};

/// The bench targets that bring their own `main` (`harness = false`). They are named one by one, because
/// `--benches` would also start every library and binary with arguments meant for a benchmark.
const BENCHES: &[&str] = &["cache", "cells", "core", "file", "quorum", "redis", "run"];

/// The part of its full length at which a long proof runs; the tests read it from the environment.
const SCALE: &str = "LEASEHOLD_SCALE";

/// How many tests of a program run at once; read by the tests' own harness.
const THREADS: &str = "RUST_TEST_THREADS";

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
            Step::Test => report.tests(self.name(), || counted(&tests().env(SCALE, "0.1"))),
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

/// The tests at full length, with what they print.
pub(crate) fn soak(filter: Option<&str>) -> Result<()> {
    let call = filter.into_iter().fold(tests(), Cargo::arg).arg("--").arg("--nocapture").env(SCALE, "1");
    let mut report = Report::default();
    let ran = install(&mut report).and_then(|()| report.tests("soak", || counted(&call)));
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

fn run(report: &mut Report, only: Option<Step>) -> Result<()> {
    if only.is_none_or(|step| step == Step::Test) {
        install(report)?;
    }
    for step in Step::ALL.into_iter().filter(|step| only.is_none_or(|only| only == *step)) {
        let name = step.name();
        step.run(report).map_err(|why| {
            format!("Step `{name}` failed. {why} To run it again, alone: cargo xtask test --only {name}")
        })?;
    }
    Ok(())
}

fn install(report: &mut Report) -> Result<()> {
    report.step("programs", || {
        Ok(format!("{}; {}; {}", programs::ensure()?, valkey::ensure()?, company::ensure()?))
    })
}

fn tests() -> Cargo {
    let call =
        Cargo::new("test --workspace --all-features --no-fail-fast").env(valkey::SERVER, valkey::server());
    // Most tests wait for most of their time: one more at once than there are processors.
    let at_once = std::thread::available_parallelism().map_or(2, usize::from) + 1;
    match std::env::var_os(THREADS) {
        Some(_) => call,
        None => call.env(THREADS, at_once.to_string()),
    }
}

/// Cargo is content with a run in which no test ran, or in which one ended its process with `exit(0)` before the
/// rest had their turn. Neither proves anything, so neither passes here.
fn counted(call: &Cargo) -> (Tally, Result<()>) {
    let (tally, ran) = call.run_tests();
    let ran = match ran {
        Ok(()) if tally.unfinished > 0 => Err("A test binary ended without a result.".to_owned()),
        Ok(()) if tally.passed == 0 => Err("No test was run; does the filter match any?".to_owned()),
        ran => ran,
    };
    (tally, ran)
}
