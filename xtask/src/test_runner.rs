//! The test runner: a process per test, several at a time, from all programs.
//!
//! A process per test separates process-wide state (log subscribers, signal handlers, open files),
//! times each test, and lets the tests of all programs share the processors.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::test_program::TestProgram;

/// Tests that start thousands of processes, and would disturb others. They run last, one at a time.
const RUN_ALONE: &[&str] = &["run_forks::"];

/// Tests that load the machine and measure times. One of them runs at a time, beside others.
const RUN_ONE_BY_ONE: &[&str] = &["processes::"];

/// Long tests that mostly wait. They run beside the others, one more at a time for each processor.
const MOSTLY_WAIT: &[&str] = &[
    "conformance::every_case_holds_on_",
    "conformance::every_case_holds_without_scripts_on_",
    "given::every_case",
    "many::",
    "tls::every_case",
];

/// The time limit for the end of output after a test: a process that it left may hold it open.
const OUTPUT_CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// The interval of checks whether a test has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

const SLOWEST: usize = 10;

pub(crate) struct Settings {
    pub(crate) env: Vec<(&'static str, String)>,
    /// Only tests whose `program::name` contains this text.
    pub(crate) filter: Option<String>,
    /// The number of tests that run at a time.
    pub(crate) jobs: usize,
    /// The number of tests that mostly wait and run beside them.
    pub(crate) waiting_jobs: usize,
    /// A test that takes longer is killed and fails.
    pub(crate) time_limit: Duration,
    /// Prints the output of tests that pass, too.
    pub(crate) shows_output: bool,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) programs: usize,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// The longest tests, longest first.
    pub(crate) slowest: Vec<(Duration, String)>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { programs, passed, failed, .. } = self;
        write!(f, "{programs} test programs: {passed} passed, {failed} failed")
    }
}

impl Summary {
    pub(crate) fn print_slowest(&self) {
        println!("\nThe slowest tests:");
        for (took, test) in &self.slowest {
            println!("{:>8.1} s  {test}", took.as_secs_f64());
        }
    }
}

struct Job {
    program: usize,
    test: String,
}

impl Job {
    fn is_in(&self, modules: &[&str]) -> bool {
        modules.iter().any(|module| self.test.starts_with(module))
    }
}

struct Run<'a> {
    programs: &'a [TestProgram],
    settings: &'a Settings,
    progress: Mutex<Progress>,
}

struct Progress {
    queue: VecDeque<Job>,
    /// A test of [`RUN_ONE_BY_ONE`] runs.
    is_one_running: bool,
    per_program: Vec<Counts>,
    total: usize,
    finished: Vec<(Duration, String)>,
    failures: Vec<String>,
}

/// The tests that a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// First the tests that do not mostly wait, then the rest.
    Any,
    MostlyWait,
}

impl Progress {
    fn next_job(&mut self, lane: Lane) -> Option<Job> {
        let may_run = |job: &Job| !(self.is_one_running && job.is_in(RUN_ONE_BY_ONE));
        let fits = |job: &Job| may_run(job) && job.is_in(MOSTLY_WAIT) == (lane == Lane::MostlyWait);
        // The last tests of `RUN_ONE_BY_ONE` all run on one thread.
        let index = self.queue.iter().position(fits).or_else(|| match lane {
            Lane::Any => self.queue.iter().position(may_run),
            Lane::MostlyWait => None,
        })?;
        let job = self.queue.remove(index)?;
        self.is_one_running |= job.is_in(RUN_ONE_BY_ONE);
        Some(job)
    }
}

#[derive(Default, Clone)]
struct Counts {
    tests: usize,
    ended: usize,
    failed: usize,
    /// The sum of the durations of its tests.
    busy: Duration,
}

/// Runs the tests of these programs, and prints a line for each program that has ended. `beside`
/// runs at the same time, and ends before the tests that run alone.
pub(crate) fn run(
    programs: &[TestProgram],
    settings: &Settings,
    beside: impl FnOnce() + Send,
) -> (Summary, Result<()>) {
    match list(programs, settings) {
        Ok((jobs, alone)) => run_jobs(programs, settings, jobs, alone, beside),
        Err(why) => (Summary::default(), Err(why)),
    }
}

/// Lists the matching tests: those that share the processors, and those that run alone.
fn list(programs: &[TestProgram], settings: &Settings) -> Result<(Vec<Job>, Vec<Job>)> {
    let mut jobs = Vec::new();
    for (program, described) in programs.iter().enumerate() {
        let name = described.name();
        let is_wanted = |test: &String| {
            settings.filter.as_ref().is_none_or(|filter| format!("{name}::{test}").contains(filter.as_str()))
        };
        jobs.extend(described.list()?.into_iter().filter(is_wanted).map(|test| Job { program, test }));
    }
    if jobs.is_empty() {
        return Err("No test was run; does the filter match any?".to_owned());
    }
    Ok(jobs.into_iter().partition(|job| !job.is_in(RUN_ALONE)))
}

fn run_jobs(
    programs: &[TestProgram],
    settings: &Settings,
    jobs: Vec<Job>,
    alone: Vec<Job>,
    beside: impl FnOnce() + Send,
) -> (Summary, Result<()>) {
    let mut per_program = vec![Counts::default(); programs.len()];
    jobs.iter().chain(&alone).for_each(|job| per_program[job.program].tests += 1);
    let total = jobs.len() + alone.len();
    let with_tests = per_program.iter().filter(|counts| counts.tests > 0).count();
    let Settings { jobs: at_a_time, waiting_jobs, .. } = settings;
    println!(
        "\n{total} tests of {with_tests} programs, {at_a_time} at a time, and {waiting_jobs} that mostly wait"
    );
    let progress = Progress {
        queue: jobs.into(),
        is_one_running: false,
        per_program,
        total,
        finished: Vec::new(),
        failures: Vec::new(),
    };
    let run = &Run { programs, settings, progress: Mutex::new(progress) };
    thread::scope(|scope| {
        scope.spawn(beside);
        let lanes = [(Lane::Any, settings.jobs), (Lane::MostlyWait, settings.waiting_jobs)];
        for (lane, threads) in lanes {
            for _ in 0..threads {
                scope.spawn(move || run.work(lane));
            }
        }
    });
    run.progress().queue.extend(alone);
    run.work(Lane::Any);
    run.summary(with_tests)
}

impl Run<'_> {
    fn work(&self, lane: Lane) {
        loop {
            let Some(job) = self.progress().next_job(lane) else { return };
            let program = &self.programs[job.program];
            let mut command = program.run_one(&job.test);
            command.envs(self.settings.env.iter().map(|(key, value)| (key, value)));
            let started = Instant::now();
            let (output, verdict) = run_process(command, self.settings.time_limit);
            self.record(&job, started.elapsed(), &output, verdict);
        }
    }

    fn record(&self, job: &Job, took: Duration, output: &str, verdict: Result<()>) {
        let program = &self.programs[job.program];
        let name = format!("{}::{}", program.name(), job.test);
        let mut progress = self.progress();
        if job.is_in(RUN_ONE_BY_ONE) {
            progress.is_one_running = false;
        }
        let counts = &mut progress.per_program[job.program];
        counts.ended += 1;
        counts.busy += took;
        if let Err(why) = verdict {
            counts.failed += 1;
            let alone = program.command_line(&job.test);
            print_line(format_args!("\n{output}\nFAILED {name}: {why}\nTo run it alone: {alone}\n"));
            progress.failures.push(format!("{name}: {why}\n    {alone}"));
        } else if self.settings.shows_output {
            let shown = without_harness(output);
            print_line(format_args!("\n== {name}, {:.1} s\n{shown}", took.as_secs_f64()));
        }
        let counts = progress.per_program[job.program].clone();
        if counts.ended == counts.tests {
            let Counts { tests, failed, busy, .. } = counts;
            let came_of_it = if failed == 0 { "ok".to_owned() } else { format!("{failed} FAILED") };
            print_line(format_args!(
                "{:<22} {tests:>5} tests {:>8.1} s  {came_of_it}",
                program.name(),
                busy.as_secs_f64()
            ));
        }
        progress.finished.push((took, name));
        if io::stdout().is_terminal() {
            let mut out = io::stdout();
            let _ = write!(out, "{} of {}\r", progress.finished.len(), progress.total);
            let _ = out.flush();
        }
    }

    fn summary(&self, programs: usize) -> (Summary, Result<()>) {
        let mut progress = self.progress();
        let failed = progress.failures.len();
        let mut slowest = std::mem::take(&mut progress.finished);
        let passed = slowest.len() - failed;
        slowest.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        slowest.truncate(SLOWEST);
        let verdict = match progress.failures.as_slice() {
            [] => Ok(()),
            failures => Err(format!("These tests failed:\n  {}\n", failures.join("\n  "))),
        };
        (Summary { programs, passed, failed, slowest }, verdict)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints a line. Without a reader, the tests still run to the end.
fn print_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Runs one test in a process; returns its output, and why it failed.
fn run_process(mut command: Command, time_limit: Duration) -> (String, Result<()>) {
    let started = io::pipe().and_then(|(reader, writer)| {
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        Ok((reader, command.spawn()?))
    });
    let (mut reader, mut child) = match started {
        Ok(started) => started,
        Err(error) => return (String::new(), Err(format!("the process could not be started: {error}"))),
    };
    // The command keeps this end of the pipe, and the reader sees no end while that is open.
    drop(command);
    let (sender, closed) = mpsc::channel();
    let output = std::sync::Arc::new(Mutex::new(Vec::new()));
    let read = output.clone();
    thread::spawn(move || {
        let mut chunk = [0; 8 * 1024];
        // A read that a signal interrupts has not reached the end.
        while let Some(bytes) = match reader.read(&mut chunk) {
            Ok(0) => None,
            Ok(length) => Some(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Some(&[][..]),
            Err(_) => None,
        } {
            read.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        }
        sender.send(())
    });
    let ended = wait(&mut child, time_limit);
    let is_closed = closed.recv_timeout(OUTPUT_CLOSES_WITHIN).is_ok();
    let output = output.lock().unwrap_or_else(PoisonError::into_inner);
    let output = String::from_utf8_lossy(&output).into_owned();
    let verdict = ended.and_then(|status| judge(status, &output)).and_then(|()| {
        if is_closed { Ok(()) } else { Err("a process that it left behind holds the output open".to_owned()) }
    });
    (output, verdict)
}

fn wait(child: &mut std::process::Child, time_limit: Duration) -> Result<ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if started.elapsed() < time_limit => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                kill_tree(child.id());
                let _ = child.wait();
                return Err(format!("it did not end within {} s", time_limit.as_secs()));
            }
            Err(error) => return Err(format!("waiting for the process failed: {error}")),
        }
    }
}

/// Kills a process and its descendants: a test may start servers, or run its body in a process.
fn kill_tree(pid: u32) {
    let children = children_of(pid);
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    children.into_iter().for_each(kill_tree);
}

/// The children of all threads of a process: the harness runs the test in a thread.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Judges the output too: a process that runs no test, or calls `exit(0)`, also ends with 0.
fn judge(status: ExitStatus, output: &str) -> Result<()> {
    if !status.success() {
        return Err(format!("the process ended with {status}"));
    }
    match output.lines().any(|line| line.starts_with("test result: ok. 1 passed; 0 failed; 0 ignored")) {
        true => Ok(()),
        false => Err("the process ended without the result of one test".to_owned()),
    }
}

/// Returns the lines that the test itself printed.
fn without_harness(output: &str) -> String {
    let is_harness = |line: &&str| {
        line.is_empty() || line.starts_with("running 1 test") || line.starts_with("test result: ")
    };
    let shown = output.lines().filter(|line| !is_harness(line)).map(|line| {
        // The harness may have begun the line with the name of the test.
        line.split_once(" ... ")
            .filter(|(start, _)| start.starts_with("test "))
            .map_or(line, |(_, rest)| rest)
    });
    shown.filter(|line| *line != "ok").collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn verdict(script: &str) -> Result<()> {
        run_process(shell(script), Duration::from_secs(30)).1
    }

    const OK: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out'";

    #[test]
    fn only_the_result_of_one_test_counts_as_passed() {
        assert_eq!(verdict(OK), Ok(()));
        for script in [
            "exit 0",
            "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'",
            "echo 'test result: ok. 0 passed; 0 failed; 1 ignored'",
            "echo '  test result: ok. 1 passed; 0 failed; 0 ignored'",
        ] {
            assert!(verdict(script).is_err(), "{script}");
        }
    }

    #[test]
    fn an_exit_code_or_a_signal_is_a_failure() {
        for script in [format!("{OK}; exit 101"), format!("{OK}; kill -9 $$")] {
            assert!(verdict(&script).is_err_and(|why| why.starts_with("the process ended with")), "{script}");
        }
    }

    #[test]
    fn a_test_that_hangs_is_killed_with_its_descendants() {
        let file = std::env::temp_dir().join(format!("leasehold-xtask-descendant-{}", std::process::id()));
        let script = format!("sh -c 'echo $$ > {}; sleep 600; :'; :", file.display());
        let (_, verdict) = run_process(shell(&script), Duration::from_millis(500));
        assert_eq!(verdict, Err("it did not end within 0 s".to_owned()));
        let pid = std::fs::read_to_string(&file).expect("the descendant has started");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
        assert!(std::fs::remove_file(&file).is_ok());
    }

    #[test]
    fn children_of_every_thread_are_found() {
        let started = thread::spawn(|| Command::new("sleep").arg("600").spawn().expect("sleep"));
        let mut child = started.join().expect("a child");
        let other = shell("exec sleep 600").spawn();
        let mut other = other.expect("a child");
        let found = children_of(std::process::id());
        for child in [&mut child, &mut other] {
            assert!(found.contains(&child.id()), "{} is not in {found:?}", child.id());
            assert!(child.kill().and_then(|()| child.wait()).is_ok());
        }
    }

    #[test]
    fn the_output_shown_is_that_of_the_test() {
        let output = "\nrunning 1 test\ntest a::b ... 12 grants\n0 overlaps\nok\n\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored\n\n";
        assert_eq!(without_harness(output), "12 grants\n0 overlaps");
    }
}
